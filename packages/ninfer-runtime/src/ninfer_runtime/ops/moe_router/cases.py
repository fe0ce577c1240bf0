"""What `moe_router` is tested and timed with."""

from __future__ import annotations

TEST_CASES = (
    (1, 16, 1, 1),
    (3, 37, 5, 5),
    (2, 128, 8, 2),
    (17, 128, 8, 2),
    (4, 2048, 256, 8),
    (70, 64, 33, 3),
)
"""T tokens, D, E experts, and A of them for each token."""

MODEL_SIZES = {"35b": (2048, 256, 8)}
"""D, E and A of the models."""

TIMED_TOKENS = (1, 2, 4, 8, 16, 32, 1024)
