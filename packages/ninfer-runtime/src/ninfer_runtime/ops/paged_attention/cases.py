"""What `paged_attention` and `attention_inputs` are tested with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """One call.

    Attributes:
        heads: H.
        key_heads: KH.
        columns: C.
        before: Tokens of each sequence before the new ones.
        valid: New tokens of each sequence.
    """

    heads: int
    key_heads: int
    columns: int
    before: tuple[int, ...]
    valid: tuple[int, ...]


TEST_CASES = (
    AttentionCase(2, 1, 1, (0,), (1,)),
    AttentionCase(6, 1, 1, (63, 64, 0), (1, 1, 0)),
    AttentionCase(8, 2, 2, (127, 5), (2, 1)),
    AttentionCase(24, 4, 4, (300,), (4,)),
    AttentionCase(6, 1, 8, (200, 1), (8, 3)),
    AttentionCase(6, 1, 16, (1000,), (16,)),
    AttentionCase(8, 1, 16, (0, 129), (16, 7)),
    AttentionCase(6, 1, 17, (0,), (17,)),
    AttentionCase(8, 2, 63, (64, 1), (63, 40)),
    AttentionCase(6, 1, 65, (63, 1000, 5), (65, 1, 0)),
    AttentionCase(6, 1, 150, (70,), (133,)),
    AttentionCase(12, 2, 200, (1,), (200,)),
    AttentionCase(2, 1, 1, (3333,), (1,)),
    AttentionCase(2, 1, 1, tuple(range(0, 600, 15)), (1, 0, 1, 1) * 10),
)

MODEL_HEADS = {"27b": (24, 4), "35b": (16, 2)}
"""H and KH of the models."""
