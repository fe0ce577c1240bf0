"""The sampler of one request: parameters, seed and the counts that penalties need."""

from __future__ import annotations

import numpy as np

from ninfer_format.errors import UsageError
from ninfer_runtime.sampling.distribution import penalized, processed_distribution
from ninfer_runtime.sampling.params import SamplingParams
from ninfer_runtime.sampling.random import Purpose, uniform


class Sampler:
    """Chooses tokens for one request.

    The same logits, parameters, seed, counts and position give the same token.

    Args:
        params: How tokens are drawn.
        seed: Seed of the random numbers, u64.
        public_tokens: Tokens that the tokenizer knows; logits beyond are padding and never chosen.

    Raises:
        UsageError: The seed is not a u64.
    """

    def __init__(self, params: SamplingParams, seed: int, public_tokens: int) -> None:
        if not 0 <= seed < 1 << 64:
            raise UsageError(f"seed must be an integer in 0..{(1 << 64) - 1}, found {seed}")
        self.params = params
        self.seed = seed
        self.public_tokens = public_tokens
        self._counts = np.zeros(public_tokens, np.int32)

    def sample(self, logits: np.ndarray, position: int, purpose: Purpose = Purpose.DECODE) -> int:
        """Choose the token that follows a column.

        Args:
            logits: float32 [V] of the column, V >= `public_tokens`.
            position: Sequence position of the column.
            purpose: What the random number is for.

        Raises:
            RequestError: ``non_finite_logits``: a logit of a public token is NaN or infinite.
        """
        public = np.asarray(logits[: self.public_tokens], np.float32)
        distribution = processed_distribution(
            penalized(public, self.params, self._counts), self.params
        )
        if distribution.ids.size == 1:
            return int(distribution.ids[0])
        return distribution.draw(uniform(self.seed, position, purpose))

    def record(self, token_id: int) -> None:
        """Count a generated token; tokens of the prompt are not counted."""
        if token_id < self.public_tokens:
            self._counts[token_id] += 1
