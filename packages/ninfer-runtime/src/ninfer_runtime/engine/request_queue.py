"""The bounded first-in-first-out queue in front of the worker, with deadlines.

A place is taken when a request is submitted. It becomes free when the request has ended and its
consumer has taken the outcome or dropped the handle. Places are counted when the next request
comes, so that no path can free one twice or forget it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ninfer_runtime.engine.admission import OutputLimit
from ninfer_runtime.engine.request import (
    FinishReason,
    GenerationResult,
    OutputSink,
    PreparedPrompt,
    Timings,
)
from ninfer_runtime.errors import RequestError, RequestErrorKind

if TYPE_CHECKING:
    from ninfer_runtime.engine.frontend import OutputSession
    from ninfer_runtime.sampling.params import Sampling


@dataclass(eq=False)
class QueuedRequest:
    """One request from submission to its outcome.

    Attributes:
        prompt: What to execute.
        limit: How far to generate.
        sampling: How its tokens are chosen.
        output: Turns them into text.
        sink: Where events go, if anywhere.
        submitted_at: Monotonic time in seconds.
        deadline: Monotonic time in seconds until which it may wait.
        outcome: The result or the error.
        cancel_requested: Set by any thread, read by the worker at every boundary.
        is_released: The consumer needs the outcome no more.
    """

    prompt: PreparedPrompt
    limit: OutputLimit
    sampling: Sampling
    output: OutputSession
    sink: OutputSink | None
    submitted_at: float
    deadline: float
    outcome: Future[GenerationResult] = field(default_factory=Future)
    cancel_requested: bool = False
    is_released: bool = False

    def cancelled_before_start(self) -> GenerationResult:
        """Return the result of a request that was cancelled while it waited."""
        waited = time.monotonic() - self.submitted_at
        return GenerationResult(
            text="",
            reasoning="",
            tool_calls=(),
            finish_reason=FinishReason.CANCELLED,
            matched_stop_string=None,
            prompt_tokens=len(self.prompt.token_ids),
            completion_tokens=0,
            reasoning_tokens=0,
            token_ids=(),
            timings=Timings(queue_s=waited, prefill_s=0.0, decode_s=0.0, total_s=waited),
            seed=self.sampling.seed,
        )


class RequestQueue:
    """Requests that wait for the worker.

    Args:
        max_outstanding: Most requests that may wait, run or be read at a time.
    """

    def __init__(self, max_outstanding: int) -> None:
        self._max_outstanding = max_outstanding
        self._waiting: deque[QueuedRequest] = deque()
        self._outstanding: list[QueuedRequest] = []
        self._closed: RequestError | None = None
        # Reentrant: a signal handler may cancel a request while its own thread submits one.
        self._changed = threading.Condition(threading.RLock())

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    def submit(self, request: QueuedRequest) -> None:
        """Put a request at the end.

        Raises:
            RequestError: ``overloaded``: every place is taken. ``unavailable``: the queue is
                closed.
        """
        self.settle_waiting()
        with self._changed:
            if self._closed is not None:
                raise RequestError(self._closed.kind, str(self._closed))
            self._outstanding = [
                other
                for other in self._outstanding
                if not (other.outcome.done() and other.is_released)
            ]
            if len(self._outstanding) >= self._max_outstanding:
                raise RequestError(
                    RequestErrorKind.OVERLOADED,
                    f"{len(self._outstanding)} requests are outstanding, "
                    f"{self._max_outstanding} may be",
                    hint="try again later",
                )
            self._outstanding.append(request)
            self._waiting.append(request)
            self._changed.notify_all()

    def take(self) -> QueuedRequest | None:
        """Wait for the first request and remove it; None when the queue was closed."""
        while True:
            self.settle_waiting()
            with self._changed:
                if self._waiting:
                    return self._waiting.popleft()
                if self._closed is not None:
                    return None
                self._changed.wait()

    def settle_waiting(self) -> None:
        """End the waiting requests that were cancelled or have waited too long."""
        now = time.monotonic()
        self._settle(lambda request: request.cancel_requested, _cancel)
        self._settle(lambda request: now >= request.deadline, _expire)

    def close(self, error: RequestError) -> None:
        """Refuse new requests with `error` and end the waiting ones with it."""
        with self._changed:
            self._closed = self._closed or error
            self._changed.notify_all()

        def refuse(request: QueuedRequest) -> None:
            request.outcome.set_exception(RequestError(error.kind, str(error)))

        self._settle(lambda request: True, refuse)

    def _settle(
        self,
        is_over: Callable[[QueuedRequest], bool],
        end: Callable[[QueuedRequest], None],
    ) -> None:
        with self._changed:
            over = [
                request
                for request in tuple(self._waiting)
                if is_over(request) and self._remove(request)
            ]
        # Outside the lock: an outcome runs the callbacks of its consumer.
        for request in over:
            end(request)

    def _remove(self, request: QueuedRequest) -> bool:
        try:
            self._waiting.remove(request)
        except ValueError:
            return False
        return True


def _cancel(request: QueuedRequest) -> None:
    request.outcome.set_result(request.cancelled_before_start())


def _expire(request: QueuedRequest) -> None:
    waited = time.monotonic() - request.submitted_at
    request.outcome.set_exception(
        RequestError(
            RequestErrorKind.QUEUE_TIMEOUT,
            f"the request waited {waited:.1f} s for its turn",
            hint="try again later",
        )
    )
