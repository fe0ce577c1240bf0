"""What `moe_experts` is tested and timed with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertsCase:
    """Sizes of one call.

    Attributes:
        tokens: T.
        width: D.
        experts: E.
        experts_per_token: A.
        inner: I, rows of an expert's gate.
        shared: S, rows of the shared expert's gate.
    """

    tokens: int
    width: int
    experts: int
    experts_per_token: int
    inner: int
    shared: int


TEST_CASES = (
    ExpertsCase(1, 16, 1, 1, 8, 8),
    ExpertsCase(5, 33, 6, 6, 7, 3),
    ExpertsCase(1, 128, 8, 2, 128, 128),
    ExpertsCase(40, 128, 8, 2, 128, 256),
    ExpertsCase(9, 64, 32, 4, 16, 48),
)

MODEL_CASES = {"35b": ExpertsCase(1, 2048, 256, 8, 512, 512)}
"""Sizes of the models, but for the number of tokens."""

TIMED_TOKENS = (1, 2, 4, 8, 16, 32, 1024)
