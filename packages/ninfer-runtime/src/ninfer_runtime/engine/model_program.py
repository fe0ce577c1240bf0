"""The program that runs a model on its device, one sequence at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ninfer_runtime.device.base import Mark
from ninfer_runtime.engine.program import MemorySummary, PrefillStep, SequenceHandle
from ninfer_runtime.errors import RequestError, RequestErrorKind
from ninfer_runtime.sampling.params import GREEDY, Sampling

if TYPE_CHECKING:
    from ninfer_runtime.engine.executor import Choice, Executor
    from ninfer_runtime.engine.lanes import Lane

_CHECKED_LATER = np.errstate(divide="ignore", invalid="ignore", over="ignore")
"""Around every unit of work: whoever takes the tokens or scores refuses what is not finite, and
NumPy's warnings before that would only blur the message."""

_SCORE_ROWS = 128
"""Rows of logits that exist at a time while scoring: 128 rows of 250,000 tokens take 128 MB."""


@dataclass
class _ActiveSequence:
    handle: SequenceHandle
    prompt: np.ndarray
    lane: Lane
    chunk_before: Mark | None = None
    chosen: int | None = None
    ahead: Choice | None = None
    """The step that executes `chosen`, if it has been begun."""


class ModelProgram:
    """Implements `ninfer_runtime.engine.program.Program` on any device.

    Args:
        executor: Executes the model; the program closes it.
        runs_ahead: Whether the step of a token is begun before anybody has asked for it, so that a
            device does not wait for the host between steps. One step is then in vain where a sequence
            ends before its capacity.
    """

    def __init__(self, executor: Executor, *, runs_ahead: bool = False) -> None:
        self._executor = executor
        self._runs_ahead = runs_ahead
        self._generation = 0
        self._active: _ActiveSequence | None = None
        self._is_streaming = False
        self._sequence_peak = 0

    @property
    def max_position_embeddings(self) -> int:
        """Longest sequence in tokens that the model was made for."""
        return self._executor.model.max_position_embeddings

    def begin(
        self, token_ids: Sequence[int], capacity: int, sampling: Sampling = GREEDY
    ) -> SequenceHandle:
        """Start a sequence with a prompt and room for `capacity` executed tokens."""
        self._check_idle()
        self._generation += 1
        handle = SequenceHandle(self._generation)
        lane = self._executor.begin(capacity, sampling)
        self._active = _ActiveSequence(handle, np.asarray(token_ids, np.int64), lane)
        self._sequence_peak = max(self._sequence_peak, self._executor.active_bytes)
        return handle

    @_CHECKED_LATER
    def advance_prefill(self, handle: SequenceHandle) -> PrefillStep:
        """Execute the next chunk of the prompt.

        The device is one chunk behind: what is waited for is the chunk before.
        """
        sequence = self._sequence(handle)
        begin = sequence.lane.length
        chunk = sequence.prompt[begin : begin + self._executor.options.prefill_chunk]
        hidden = self._executor.prefill(sequence.lane, chunk)
        if sequence.lane.length == len(sequence.prompt):
            return PrefillStep(sequence.lane.length, _token(self._executor.choose(hidden)))
        if sequence.chunk_before is not None:
            sequence.chunk_before.wait()
        sequence.chunk_before = self._executor.device.mark()
        return PrefillStep(sequence.lane.length, None)

    @_CHECKED_LATER
    def decode(self, handle: SequenceHandle, token_id: int) -> int:
        """Execute one more token; returns the one that is chosen after it."""
        sequence = self._sequence(handle)
        lanes = (sequence.lane,)
        choice, sequence.ahead = sequence.ahead, None
        if choice is None:
            choice = self._executor.decode(lanes, (token_id,))
        elif token_id != sequence.chosen:
            raise StaleHandleError(f"token {token_id} is executed, {sequence.chosen} was chosen")
        if self._runs_ahead and sequence.lane.length < sequence.lane.capacity:
            sequence.ahead = self._executor.decode(lanes)
        sequence.chosen = _token(choice)
        return sequence.chosen

    def finish(self, handle: SequenceHandle) -> None:
        """End a sequence whose state is sound."""
        self._executor.end(self._sequence(handle).lane)
        self._active = None

    def discard(self, handle: SequenceHandle) -> None:
        """End a sequence of which nothing may be kept."""
        self.finish(handle)

    def score(self, token_ids: Sequence[int], first_target: int, public_tokens: int) -> np.ndarray:
        """Log-probabilities of the tokens of one stream; see `Program.score`."""
        tokens = np.asarray(token_ids, np.int64)
        scores = np.empty(len(tokens) - first_target, np.float32)
        begin = 0
        # An error here must not leave the stream begun for as long as anybody holds its traceback.
        with closing(self.target_logits(token_ids, first_target, public_tokens)) as stream:
            for logits in stream:
                end = begin + len(logits)
                targets = tokens[first_target + begin : first_target + end]
                scores[begin:end] = _checked_later(log_probabilities, logits, targets)
                begin = end
        return scores

    def target_logits(
        self, token_ids: Sequence[int], first_target: int, public_tokens: int
    ) -> Generator[np.ndarray, None, None]:
        """Logits for the tokens of one stream; see `Program.target_logits`."""
        tokens = np.asarray(token_ids, np.int64)
        executor = self._executor
        self._check_idle()
        lane = executor.begin(len(tokens), GREEDY)
        self._is_streaming = True
        try:
            # The last token predicts nothing that is scored.
            for begin in range(0, len(tokens) - 1, executor.options.prefill_chunk):
                end = min(begin + executor.options.prefill_chunk, len(tokens) - 1)
                hidden = _checked_later(executor.prefill, lane, tokens[begin:end])
                for row in range(max(begin, first_target - 1), end, _SCORE_ROWS):
                    last = min(row + _SCORE_ROWS, end)
                    rows = hidden[row - begin : last - begin]
                    logits = _checked_later(executor.model.logits, rows)
                    yield executor.device.to_host(logits)[:, :public_tokens]
        finally:
            self._is_streaming = False
            executor.end(lane)

    def memory(self) -> MemorySummary:
        """Say what memory is taken."""
        return MemorySummary(
            weight_bytes=self._executor.model.weight_bytes,
            sequence_bytes=self._executor.active_bytes,
            sequence_peak_bytes=self._sequence_peak,
        )

    def close(self) -> None:
        """Drop the active sequence; the weights go with the program itself."""
        self._active = None
        self._executor.close()

    def _check_idle(self) -> None:
        if self._active is not None:
            raise StaleHandleError("a sequence was begun while another one is active")
        if self._is_streaming:
            raise StaleHandleError(
                "a sequence was begun while the logits of a stream are neither read to their end"
                " nor closed"
            )

    def _sequence(self, handle: SequenceHandle) -> _ActiveSequence:
        if self._active is None or self._active.handle != handle:
            raise StaleHandleError(f"sequence {handle.generation} is not active")
        return self._active


class StaleHandleError(Exception):
    """A sequence was used after its end: a fault of the engine, not of a request."""


@_CHECKED_LATER
def _checked_later(work: Callable[..., Any], *arguments: object) -> Any:
    """Do a piece of work of a generator, which must not keep the setting while it is not running."""
    return work(*arguments)


def _token(choice: Choice) -> int:
    """The only token of a choice.

    Raises:
        RequestError: ``non_finite_logits``: a logit is NaN or infinite.
    """
    (token,) = choice.wait().tolist()
    if token >= 0:
        return int(token)
    logits = choice.logits.device.to_host(choice.logits)[0]
    # Of a step that has been begun since, all may be finite.
    broken = np.flatnonzero(~np.isfinite(logits))
    which = f" ({logits[broken[0]]} for token {broken[0]})" if broken.size else ""
    raise RequestError(
        RequestErrorKind.NON_FINITE_LOGITS,
        f"the model computed a logit that is not finite{which}",
    )


def log_probabilities(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Logarithm of the softmax of each row at its target.

    Args:
        logits: float32 [T, V].
        targets: int [T], each below V.

    Returns:
        float32 [T]; not finite where the row is not.
    """
    largest = logits.max(axis=1, keepdims=True)
    total = np.exp(logits - largest).sum(axis=1)
    chosen = np.take_along_axis(logits, targets[:, None], axis=1)[:, 0]
    scores: np.ndarray = chosen - largest[:, 0] - np.log(total)
    return scores
