"""Random numbers without state: a hash of seed, position and purpose.

A number depends on nothing else, so a request draws the same numbers in any batch, after any
prefill chunking and with or without speculation (engine specification, section 8.3).
"""

from __future__ import annotations

from enum import IntEnum

_U64 = (1 << 64) - 1
_U32 = (1 << 32) - 1


class Purpose(IntEnum):
    """What a random number is drawn for; numbers of different purposes are independent."""

    PREFILL = 0
    DECODE = 1
    ACCEPT = 2
    CORRECTION = 3
    BONUS = 4
    DFLASH2_PROPOSAL = 5


def _mix(x: int) -> int:
    """Scramble 64 bits (the SplitMix64 output function)."""
    x = (x + 0x9E3779B97F4A7C15) & _U64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _U64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _U64
    return x ^ (x >> 31)


def uniform(seed: int, position: int, purpose: Purpose, sub: int = 0) -> float:
    """Return a multiple of 2**-24 in [0, 1).

    Args:
        seed: Seed of the request, u64.
        position: Sequence position of the column whose logits are drawn from, u32.
        purpose: What the number is for.
        sub: Tells apart several numbers for one purpose at one position.
    """
    key = _mix((seed & _U64) ^ (((position & _U32) * 0xD1B54A32D192ED03) & _U64))
    key = _mix(key ^ (int(purpose) << 21) ^ ((sub * 0x2545F4914F6CDD1D) & _U64))
    return float((key >> 40) * 2.0**-24)
