"""What a caller holds of a submitted request."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from concurrent import futures

from ninfer_runtime.engine.request import GenerationResult
from ninfer_runtime.engine.request_queue import QueuedRequest, RequestQueue
from ninfer_runtime.sampling.params import SamplingParams


class GenerationHandle:
    """A submitted request: wait for it or cancel it. Dropping the handle cancels it too."""

    def __init__(self, request: QueuedRequest, queue: RequestQueue) -> None:
        self._request = request
        self._queue = queue
        # The garbage collector may run this in any thread and in the middle of any lock, so it
        # sets flags only; the worker sees them at its next boundary.
        weakref.finalize(self, _abandon, request)

    @property
    def done(self) -> bool:
        """Whether the outcome is there."""
        return self._request.outcome.done()

    @property
    def seed(self) -> int:
        """Seed of the request's random numbers, also where the engine drew it."""
        return self._request.sampling.seed

    @property
    def sampling(self) -> SamplingParams:
        """How the request's tokens are drawn, with the model's preset applied."""
        return self._request.sampling.params

    def cancel(self) -> None:
        """End the request at its next chunk or step, or at once while it waits.

        Its outcome is a result with what was produced until then and the reason ``cancelled``.
        """
        self._request.cancel_requested = True
        self._queue.settle_waiting()

    def wait(self, timeout: float | None = None) -> GenerationResult:
        """Wait for the outcome and give the request's place in the engine back.

        Args:
            timeout: Longest wait in seconds; None waits for ever.

        Raises:
            RequestError: The request failed.
            TimeoutError: There is no outcome yet; the request goes on.
        """
        started = time.monotonic()
        outcome = self._request.outcome
        until_deadline = max(0.0, self._request.deadline - started)
        if timeout is None or until_deadline < timeout:
            # Longer waits, an endless deadline among them, are more than a lock can take.
            futures.wait([outcome], timeout=min(until_deadline, threading.TIMEOUT_MAX))
            # The worker does the same at its boundaries, but it may be stuck in one unit of work.
            self._queue.settle_waiting()
        spent = time.monotonic() - started
        try:
            rest = None if timeout is None else max(0.0, timeout - spent)
            return outcome.result(None if rest is None else min(rest, threading.TIMEOUT_MAX))
        finally:
            self._request.is_released = outcome.done()

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the outcome is there, on the thread that formed it, or at once.

        `wait` returns without waiting from then on, and still has to be called.
        """
        self._request.outcome.add_done_callback(lambda outcome: callback())


def _abandon(request: QueuedRequest) -> None:
    request.cancel_requested = True
    request.is_released = True
