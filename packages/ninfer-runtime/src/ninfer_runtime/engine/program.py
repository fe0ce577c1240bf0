"""The physical side of the engine: what executes sequences, and nothing about who asked for them.

A program owns weights, states and execution. It knows no queue, no text and no caller. One
sequence is active at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np

    from ninfer_runtime.sampling.params import Sampling


@dataclass(frozen=True, slots=True)
class SequenceHandle:
    """Names the sequence that one `Program.begin` started.

    Attributes:
        generation: Counts the sequences of a program; a handle whose sequence has ended is stale,
            and using it is a fault of the engine.
    """

    generation: int


@dataclass(frozen=True, slots=True)
class PrefillStep:
    """What one prefill chunk left behind.

    Attributes:
        processed: Prompt tokens executed so far.
        token_id: The token that is chosen after the prompt; None before the last chunk.
    """

    processed: int
    token_id: int | None


@dataclass(frozen=True, slots=True)
class MemorySummary:
    """Memory that a program takes.

    Attributes:
        weight_bytes: Loaded weights.
        sequence_bytes: State of the active sequence.
        sequence_peak_bytes: Largest state of a sequence so far.
    """

    weight_bytes: int
    sequence_bytes: int
    sequence_peak_bytes: int


class Program(Protocol):
    """Executes one sequence at a time; called by one thread only.

    An exception other than `RequestError` and `MemoryError` means that nobody knows what the
    program left behind; the engine then fails as a whole.
    """

    @property
    def max_position_embeddings(self) -> int:
        """Longest sequence in tokens that the model was made for."""
        ...

    def begin(self, token_ids: Sequence[int], capacity: int, sampling: Sampling) -> SequenceHandle:
        """Start a sequence.

        Args:
            token_ids: Its prompt.
            capacity: Tokens that it may execute, the prompt among them.
            sampling: How its tokens are chosen.
        """
        ...

    def advance_prefill(self, handle: SequenceHandle) -> PrefillStep:
        """Execute the next chunk of the prompt, and choose a token after the last one.

        Raises:
            RequestError: ``non_finite_logits``: the logits to choose from are not all finite.
        """
        ...

    def decode(self, handle: SequenceHandle, token_id: int) -> int:
        """Execute a token that has been chosen, and choose the one after it.

        Tokens that are executed so, but not those of the prompt, count for the penalties.

        Raises:
            RequestError: ``non_finite_logits``: the logits to choose from are not all finite.
        """
        ...

    def finish(self, handle: SequenceHandle) -> None:
        """End a sequence whose state is sound."""
        ...

    def discard(self, handle: SequenceHandle) -> None:
        """End a sequence of which nothing may be kept."""
        ...

    def score(self, token_ids: Sequence[int], first_target: int, public_tokens: int) -> np.ndarray:
        """Log-probabilities of the tokens of one stream, from an empty state.

        Args:
            token_ids: The stream, N tokens.
            first_target: The first position that is scored, at least 1.
            public_tokens: The softmax runs over the ids below this.

        Returns:
            float32 [N - first_target], natural logarithms.
        """
        ...

    def target_logits(
        self, token_ids: Sequence[int], first_target: int, public_tokens: int
    ) -> Generator[np.ndarray, None, None]:
        """Logits that predict the tokens of one stream, from an empty state.

        No sequence may be begun before all are read or the generator is closed.

        Args:
            token_ids: The stream, N tokens.
            first_target: The first position that is predicted, at least 1.
            public_tokens: Logits of the ids below this.

        Yields:
            float32 ``[n, public_tokens]`` of consecutive targets, some rows at a time, N -
            first_target in all.
        """
        ...

    def memory(self) -> MemorySummary:
        """Say what memory is taken; may be called from any thread."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...
