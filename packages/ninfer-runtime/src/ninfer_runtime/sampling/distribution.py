"""From a row of logits to the distribution that a token is drawn from.

The steps and their order are those of the engine specification, section 8.1; arithmetic is
float32. Every backend has to arrive at the same candidates, so ties go to the lower id.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ninfer_runtime.sampling.params import MAX_CANDIDATES, SamplingParams

_BLOCK = 32
"""Logits of which only the largest is looked at first: sorting all takes longest."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """The tokens that may be drawn, best first.

    Attributes:
        ids: int64 [K], K <= 20.
        cumulative: float32 [K], running sums of the weights; strictly positive, not normalised.
    """

    ids: np.ndarray
    cumulative: np.ndarray

    def draw(self, u: float) -> int:
        """Return the token at `u` in [0, 1) of the cumulative distribution."""
        goal = np.float32(u) * self.cumulative[-1]
        index = int(np.searchsorted(self.cumulative, goal, side="right"))
        # The product may round up to the whole mass; the last candidate is meant then.
        return int(self.ids[min(index, self.ids.size - 1)])


def penalized(logits: np.ndarray, params: SamplingParams, counts: np.ndarray) -> np.ndarray:
    """Subtract the penalties from logits.

    Args:
        logits: float32 [V], finite, the public tokens only.
        params: Presence and frequency penalty are used.
        counts: int32 [V], how often each token was generated.

    Returns:
        float32 [V]; `logits` itself if there is no penalty.
    """
    if not params.has_penalties:
        return logits
    seen = np.float32(params.presence_penalty) * (counts > 0).astype(np.float32)
    repeated = np.float32(params.frequency_penalty) * counts.astype(np.float32)
    return np.asarray(logits - seen - repeated, np.float32)


def _best(logits: np.ndarray, count: int) -> np.ndarray:
    """Return the ids of the `count` largest logits, best first, lower id first among equals."""
    blocks = logits.size // _BLOCK
    candidates = np.arange(logits.size)
    if blocks > count:
        # At least `count` logits are as large as that many blocks' largest; few are, mostly.
        largest = logits[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1)
        candidates = np.flatnonzero(logits >= np.partition(largest, -count)[-count])
    order = np.argsort(-logits[candidates], kind="stable")
    return np.asarray(candidates[order[:count]])


def processed_distribution(logits: np.ndarray, params: SamplingParams) -> Distribution:
    """Cut and weight penalised logits float32 [V]; a single candidate at temperature 0."""
    temperature = np.float32(params.temperature)
    if temperature <= 0:
        # np.argmax returns the first maximum, which is the lowest id.
        return Distribution(np.array([np.argmax(logits)]), np.ones(1, np.float32))
    ids = _best(logits, params.top_k or MAX_CANDIDATES)
    best_first = logits[ids]
    with np.errstate(over="ignore"):
        exponents = (best_first - best_first[0]) / temperature
    # Through float64, because float32 exp differs in its last bit between processors.
    weights = np.exp(exponents.astype(np.float64)).astype(np.float32)
    cumulative = np.cumsum(weights, dtype=np.float32)
    above_min_p = int(np.count_nonzero(weights >= np.float32(params.min_p) * weights[0]))
    goal = np.float32(params.top_p) * cumulative[-1]
    within_top_p = int(np.searchsorted(cumulative, goal, side="left")) + 1
    kept = min(above_min_p, within_top_p)
    return Distribution(ids[:kept], cumulative[:kept])
