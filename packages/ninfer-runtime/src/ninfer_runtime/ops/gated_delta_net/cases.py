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
)
