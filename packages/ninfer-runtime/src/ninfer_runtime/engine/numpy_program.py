"""The program on the CPU: the reference that every other program is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ninfer_runtime.engine.program import MemorySummary, PrefillStep, SequenceHandle

if TYPE_CHECKING:
    from ninfer_runtime.models.architecture import LanguageModel, SequenceState

_CHECKED_LATER = np.errstate(divide="ignore", invalid="ignore", over="ignore")
"""Around every unit of work: whoever takes the logits or scores refuses what is not finite, and
NumPy's warnings before that would only blur the message."""

_SCORE_ROWS = 128
"""Rows of logits that exist at a time while scoring: 128 rows of 250,000 tokens take 128 MB."""


@dataclass
class _ActiveSequence:
    handle: SequenceHandle
    prompt: np.ndarray
    state: SequenceState


class NumpyProgram:
    """Executes a language model on the CPU; implements `ninfer_runtime.engine.program.Program`.

    Args:
        model: The model.
        prefill_chunk: Prompt tokens executed at a time. The grid of chunks depends on nothing
            else, so that results do not depend on load.
    """

    def __init__(self, model: LanguageModel, prefill_chunk: int) -> None:
        self._model = model
        self._prefill_chunk = prefill_chunk
        self._generation = 0
        self._active: _ActiveSequence | None = None
        self._sequence_peak = 0

    @property
    def max_position_embeddings(self) -> int:
        """Longest sequence in tokens that the model was made for."""
        return self._model.max_position_embeddings

    def begin(self, token_ids: Sequence[int], capacity: int) -> SequenceHandle:
        """Start a sequence with a prompt and room for `capacity` executed tokens."""
        if self._active is not None:
            raise StaleHandleError("a sequence was begun while another one is active")
        self._generation += 1
        handle = SequenceHandle(self._generation)
        state = self._model.new_state(capacity)
        self._active = _ActiveSequence(handle, np.asarray(token_ids, np.int64), state)
        return handle

    @_CHECKED_LATER
    def advance_prefill(self, handle: SequenceHandle) -> PrefillStep:
        """Execute the next chunk of the prompt."""
        sequence = self._sequence(handle)
        begin = sequence.state.length
        chunk = sequence.prompt[begin : begin + self._prefill_chunk]
        hidden = self._model.forward(chunk, sequence.state)
        processed = begin + len(chunk)
        if processed < len(sequence.prompt):
            return PrefillStep(processed, None)
        return PrefillStep(processed, self._model.logits(hidden[-1:])[0])

    @_CHECKED_LATER
    def decode(self, handle: SequenceHandle, token_id: int) -> np.ndarray:
        """Execute one more token; returns float32 logits [V] for the one after it."""
        sequence = self._sequence(handle)
        hidden = self._model.forward(np.array([token_id], np.int64), sequence.state)
        logits: np.ndarray = self._model.logits(hidden)[0]
        return logits

    def finish(self, handle: SequenceHandle) -> None:
        """End a sequence whose state is sound."""
        # States grow, so the largest size is that at the end.
        state = self._sequence(handle).state
        self._sequence_peak = max(self._sequence_peak, state.num_bytes)
        self._active = None

    def discard(self, handle: SequenceHandle) -> None:
        """End a sequence of which nothing may be kept."""
        self.finish(handle)

    def score(self, token_ids: Sequence[int], first_target: int, public_tokens: int) -> np.ndarray:
        """Log-probabilities of the tokens of one stream; see `Program.score`."""
        tokens = np.asarray(token_ids, np.int64)
        scores = np.empty(len(tokens) - first_target, np.float32)
        begin = 0
        for logits in self.target_logits(token_ids, first_target, public_tokens):
            end = begin + len(logits)
            targets = tokens[first_target + begin : first_target + end]
            scores[begin:end] = _checked_later(log_probabilities, logits, targets)
            begin = end
        return scores

    def target_logits(
        self, token_ids: Sequence[int], first_target: int, public_tokens: int
    ) -> Iterator[np.ndarray]:
        """Logits for the tokens of one stream; see `Program.target_logits`."""
        tokens = np.asarray(token_ids, np.int64)
        state = self._model.new_state(len(tokens))
        # The last token predicts nothing that is scored.
        for begin in range(0, len(tokens) - 1, self._prefill_chunk):
            end = min(begin + self._prefill_chunk, len(tokens) - 1)
            hidden = _checked_later(self._model.forward, tokens[begin:end], state)
            for row in range(max(begin, first_target - 1), end, _SCORE_ROWS):
                last = min(row + _SCORE_ROWS, end)
                logits = _checked_later(self._model.logits, hidden[row - begin : last - begin])
                yield logits[:, :public_tokens]

    def memory(self) -> MemorySummary:
        """Say what memory is taken."""
        active = self._active
        sequence = 0 if active is None else active.state.num_bytes
        return MemorySummary(
            weight_bytes=self._model.weight_bytes,
            sequence_bytes=sequence,
            sequence_peak_bytes=max(sequence, self._sequence_peak),
        )

    def close(self) -> None:
        """Drop the active sequence; the weights go with the program itself."""
        self._active = None

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
