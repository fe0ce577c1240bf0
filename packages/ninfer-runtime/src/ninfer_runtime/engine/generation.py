"""The life of one request on the worker: prefill, decode, output and the reason to end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ninfer_format.errors import ExitCode, NInferError
from ninfer_runtime.engine.request import (
    FinishReason,
    GenerationResult,
    GenerationStart,
    OutputDelta,
    OutputSink,
    PromptProgress,
    Timings,
)
from ninfer_runtime.errors import DeviceMemoryError, RequestError, RequestErrorKind

if TYPE_CHECKING:
    from ninfer_runtime.engine.program import Program, SequenceHandle
    from ninfer_runtime.engine.request_queue import QueuedRequest
    from ninfer_runtime.engine.stats import Counters

P = ParamSpec("P")
R = TypeVar("R")


class ProgramError(Exception):
    """The program raised something that leaves its state unknown.

    Args:
        cause: What it raised.

    Attributes:
        exit_code: How a command ends; 70 unless the cause is a known one, such as a lost device.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.exit_code = cause.exit_code if isinstance(cause, NInferError) else ExitCode.INTERNAL


class _CancelledError(Exception):
    """Unwinds a generation whose request was cancelled."""


class Generation:
    """Runs one request to its end.

    Args:
        request: What to run.
        program: Executes it.
        counters: Counts what was executed.
        boundary: Called before every unit of device work; keeps the queue and the heartbeat alive.
    """

    def __init__(
        self,
        request: QueuedRequest,
        program: Program,
        counters: Counters,
        boundary: Callable[[], None],
    ) -> None:
        self._request = request
        self._output = request.output
        self._program = program
        self._counters = counters
        self._boundary = boundary
        self._prompt_tokens = len(request.prompt.token_ids)
        self._started_at = time.monotonic()
        self._first_token_at: float | None = None
        self._last_token_at = self._started_at

    def run(self) -> GenerationResult:
        """Execute the request.

        Raises:
            RequestError: It failed; the program is ready for the next one.
            ProgramError: The program can execute nothing any more.
        """
        start = GenerationStart(self._prompt_tokens, self._request.prompt.starts_in_reasoning)
        self._emit(lambda sink: sink.start(start))
        # The last token is chosen but not executed.
        capacity = self._prompt_tokens + max(self._request.limit.tokens, 1) - 1
        handle = _call(
            self._program.begin, self._request.prompt.token_ids, capacity, self._request.sampling
        )
        try:
            reason = self._generate(handle)
            self._publish(self._output.close(reason))
        except ProgramError:
            raise
        except BaseException:
            _call(self._program.discard, handle)
            raise
        _call(self._program.finish, handle)
        return self._result(reason)

    def _generate(self, handle: SequenceHandle) -> FinishReason:
        try:
            token_id = self._prefill(handle)
            if self._request.limit.tokens == 0:
                return self._request.limit.reason
            return self._decode(handle, token_id)
        except _CancelledError:
            return FinishReason.CANCELLED

    def _prefill(self, handle: SequenceHandle) -> int:
        processed = 0
        self._report_progress(processed)
        while True:
            step = self._unit(self._program.advance_prefill, handle)
            self._counters.computed_prefill_tokens += step.processed - processed
            processed = step.processed
            self._report_progress(processed)
            if step.token_id is not None:
                return step.token_id

    def _decode(self, handle: SequenceHandle, token_id: int) -> FinishReason:
        for generated in range(1, self._request.limit.tokens + 1):
            deltas, stop = self._output.accept(token_id)
            self._count_token()
            self._publish(deltas)
            if stop is not None:
                return stop
            if generated < self._request.limit.tokens:
                token_id = self._unit(self._program.decode, handle, token_id)
                self._counters.decode_rounds += 1
        return self._request.limit.reason

    def _unit(self, execute: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Execute one unit of device work; a cancelled request shows nothing of its last one."""
        self._boundary()
        if self._request.cancel_requested:
            raise _CancelledError
        result = _call(execute, *args, **kwargs)
        if self._request.cancel_requested:
            raise _CancelledError
        return result

    def _count_token(self) -> None:
        self._last_token_at = time.monotonic()
        if self._first_token_at is None:
            self._first_token_at = self._last_token_at
        else:
            self._counters.committed_decode_tokens += 1

    def _report_progress(self, processed: int) -> None:
        event = PromptProgress(self._prompt_tokens, processed)
        self._emit(lambda sink: sink.progress(event))

    def _publish(self, deltas: tuple[OutputDelta, ...]) -> None:
        def send_all(sink: OutputSink) -> None:
            for delta in deltas:
                sink.publish(delta)

        self._emit(send_all)

    def _emit(self, send: Callable[[OutputSink], None]) -> None:
        if self._request.sink is None:
            return
        try:
            send(self._request.sink)
        except Exception as error:
            raise RequestError(
                RequestErrorKind.CANCELLED,
                f"the receiver of the output failed: {type(error).__name__}: {error}",
            ) from error

    def _result(self, reason: FinishReason) -> GenerationResult:
        return GenerationResult(
            text=self._output.content,
            reasoning=self._output.reasoning,
            tool_calls=self._output.tool_calls,
            finish_reason=self._output.finish_reason or reason,
            matched_stop_string=self._output.matched_stop_string,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=len(self._output.token_ids),
            reasoning_tokens=self._output.reasoning_tokens,
            token_ids=tuple(self._output.token_ids),
            timings=self._timings(),
            seed=self._request.sampling.seed,
        )

    def _timings(self) -> Timings:
        now = time.monotonic()
        first = now if self._first_token_at is None else self._first_token_at
        return Timings(
            queue_s=self._started_at - self._request.submitted_at,
            prefill_s=first - self._started_at,
            decode_s=max(0.0, self._last_token_at - first),
            total_s=now - self._request.submitted_at,
        )


def _call(execute: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a method of the program and tell what only this request loses from what all lose."""
    try:
        return execute(*args, **kwargs)
    except RequestError:
        raise
    except (MemoryError, DeviceMemoryError) as error:
        raise RequestError(
            RequestErrorKind.UNAVAILABLE,
            "memory ran out while the request was executed",
            hint="try again later, or with a shorter prompt",
            exit_code=ExitCode.CAPACITY,
        ) from error
    except Exception as error:
        raise ProgramError(error) from error
