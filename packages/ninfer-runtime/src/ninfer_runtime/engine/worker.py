"""The one thread that executes: it takes requests from the queue and runs them one by one.

It alone calls the program. What a single request does wrong ends that request; only a program in
an unknown state ends the engine, and then everything that waits is told so.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from ninfer_runtime.engine.generation import Generation, ProgramError
from ninfer_runtime.engine.nonfinite import NonFiniteWatch
from ninfer_runtime.engine.stats import Availability, Counters
from ninfer_runtime.errors import DeviceMemoryError, RequestError, RequestErrorKind

if TYPE_CHECKING:
    from ninfer_runtime.engine.program import Program
    from ninfer_runtime.engine.request import GenerationResult
    from ninfer_runtime.engine.request_queue import QueuedRequest, RequestQueue

_log = logging.getLogger(__name__)
# Without a handler of the application's, details of a failure stay out of a command's stderr.
_log.addHandler(logging.NullHandler())


class Worker:
    """Owns the engine's thread and says whether it can serve.

    Args:
        program: Executes sequences.
        queue: Where requests come from.
        counters: Counts what was executed.
    """

    def __init__(self, program: Program, queue: RequestQueue, counters: Counters) -> None:
        self._program = program
        self._queue = queue
        self._counters = counters
        self._nonfinite = NonFiniteWatch()
        self._running: QueuedRequest | None = None
        self._state = Availability.READY
        # A daemon: a process that is told to end at once must not wait for a prefill chunk.
        self._thread = threading.Thread(target=self._run, name="ninfer-engine", daemon=True)

    @property
    def availability(self) -> Availability:
        """Whether the worker takes requests."""
        return self._state

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Refuse new requests, end the waiting ones, cancel the running one; wait for the end."""
        if self._state is not Availability.FAILED:
            self._state = Availability.STOPPING
        self._queue.close(RequestError(RequestErrorKind.UNAVAILABLE, "the engine is shutting down"))
        running = self._running
        if running is not None:
            running.cancel_requested = True
        self._thread.join()

    def _run(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Run the first request of the queue; False when there will be none any more."""
        request = self._queue.take()
        if request is None:
            return False
        self._running = request
        if self._state is Availability.STOPPING:
            request.cancel_requested = True
        self._counters.beat()
        outcome = self._serve(request)
        self._running = None
        self._counters.rest()
        # Last, so that whoever waits for it finds the engine ready for the next request.
        if isinstance(outcome, RequestError):
            request.outcome.set_exception(outcome)
        else:
            request.outcome.set_result(outcome)
        return True

    def _boundary(self) -> None:
        self._counters.beat()
        self._queue.settle_waiting()

    def _serve(self, request: QueuedRequest) -> GenerationResult | RequestError:
        try:
            result = Generation(request, self._program, self._counters, self._boundary).run()
        except RequestError as error:
            return self._reject(request, error)
        except ProgramError as error:
            _log.error("the engine failed", exc_info=error)
            self._give_up(str(error))
            failure = RequestError(
                RequestErrorKind.UNAVAILABLE,
                f"the engine failed: {error}",
                exit_code=error.exit_code,
            )
            failure.__cause__ = error
            return self._reject(request, failure)
        except BaseException as error:
            # Whatever a receiver or the text side raises, the thread has others to serve.
            _log.exception("a request failed")
            failure = RequestError(
                RequestErrorKind.INTERNAL, f"internal error: {type(error).__name__}: {error}"
            )
            failure.__cause__ = error
            return self._reject(request, failure)
        self._counters.finished_requests += 1
        return result

    def _reject(self, request: QueuedRequest, error: RequestError) -> RequestError:
        self._counters.failed_requests += 1
        if isinstance(error.__cause__, (MemoryError, DeviceMemoryError)):
            self._counters.oom_recovered += 1
        if error.kind is RequestErrorKind.NON_FINITE_LOGITS:
            self._counters.nonfinite_requests += 1
            if self._nonfinite.record(request.prompt.token_ids):
                self._give_up("logits of several different prompts are not finite")
        return error

    def _give_up(self, reason: str) -> None:
        self._state = Availability.FAILED
        self._queue.close(
            RequestError(RequestErrorKind.UNAVAILABLE, f"the engine failed: {reason}")
        )
