"""What `gated_delta_net` is tested with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeltaCase:
    """One call.

    Attributes:
        key_heads: KH.
        value_heads: VH.
        columns: C.
        ring: Records of a slot.
        position: Tokens of each sequence's source state.
        replayed: Recorded tokens that come first.
        valid: New tokens.
        committed: New tokens that the stored state contains.
        moves: Whether each sequence's destination is another slot.
    """

    key_heads: int
    value_heads: int
    columns: int
    ring: int
    position: tuple[int, ...]
    replayed: tuple[int, ...]
    valid: tuple[int, ...]
    committed: tuple[int, ...]
    moves: tuple[bool, ...]


TEST_CASES = (
    DeltaCase(1, 1, 1, 4, (0,), (0,), (1,), (1,), (False,)),
    DeltaCase(2, 4, 1, 4, (1, 1000, 2), (0, 0, 0), (1, 1, 0), (1, 1, 0), (False, True, False)),
    DeltaCase(1, 3, 4, 16, (9, 0), (3, 4), (4, 2), (0, 0), (False, False)),
    DeltaCase(2, 2, 4, 16, (2, 77), (4, 0), (4, 4), (0, 2), (True, True)),
    DeltaCase(1, 2, 16, 64, (50,), (16,), (16,), (0,), (False,)),
    DeltaCase(1, 2, 3, 16, (5,), (2,), (0,), (0,), (False,)),
    DeltaCase(1, 2, 70, 16, (0, 21), (0, 1), (70, 33), (70, 33), (False, True)),
    DeltaCase(
        4,
        40,
        2,
        16,
        (3, 0, 9, 40, 5, 7, 2),
        (1, 0, 2, 0, 0, 9, 4),
        (2, 1, 0, 2, 2, 1, 2),
        (0, 1, 0, 2, 1, 0, 2),
        (True, False, True, False, True, False, False),
    ),
    DeltaCase(4, 40, 9, 64, (3, 50, 0), (16, 0, 2), (9, 5, 9), (0, 5, 9), (False, True, False)),
    DeltaCase(1, 1, 64, 16, (3,), (0,), (64,), (64,), (False,)),
    DeltaCase(1, 5, 150, 16, (0, 77), (0, 9), (150, 64), (70, 0), (True, False)),
    DeltaCase(2, 4, 90, 256, (1, 500, 9), (0, 97, 2), (63, 90, 0), (1, 80, 0), (False, True, True)),
    DeltaCase(1, 3, 1100, 16, (30,), (0,), (1100,), (1100,), (False,)),
)
