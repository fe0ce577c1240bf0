"""Trellis tiles: 256 overlapping 16-bit states in a ring of bits, and the integer each state means.

A tile covers 16 outputs times 16 inputs. Its bits form a ring; state t is the 16-bit window that
ends where step t ends, lowest bit oldest. Steps advance by ``h / 2`` bits for a rate of h half bits
per weight; an odd h alternates between (h - 1) / 2 and (h + 1) / 2 (layouts specification,
section 7; the integers: formats specification, section 7).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer_format.dtypes import EXL3_MUL1
from ninfer_format.errors import ArtifactError
from ninfer_format.layouts import TRELLIS_T16_V1

TILE = EXL3_MUL1.tile
"""Outputs, and inputs, of one tile."""
STATES = TILE * TILE
"""States of one tile, one a weight."""
STATE_BITS = 16

_RATES = TRELLIS_T16_V1.bitrates
_MULTIPLIER = 0x83DCD12D
_OFFSET = 510


def tile_bytes(bitrate_half_bits: int | None) -> int:
    """Bytes of one tile.

    Raises:
        ArtifactError: `encoding`: there is no such rate.
    """
    if type(bitrate_half_bits) is not int or bitrate_half_bits not in _RATES:
        raise ArtifactError(
            "encoding",
            "trellis tiles have no such bit rate",
            expected=f"bitrate_half_bits {_RATES[0]} to {_RATES[-1]}",
            found=bitrate_half_bits,
        )
    return STATES * bitrate_half_bits // 16


def step_widths(bitrate_half_bits: int) -> NDArray[np.int64]:
    """Bits by which each of the 256 steps advances; they add up to the bits of a tile.

    Raises:
        ArtifactError: `encoding`: there is no such rate.
    """
    tile_bytes(bitrate_half_bits)
    return bitrate_half_bits // 2 + (np.arange(STATES) & bitrate_half_bits & 1)


def tile_positions() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the weight of state t lies in its tile.

    The order is that of a B fragment of the tensor-core operation mma.m16n8k16, so that a thread
    finds its eight weights in consecutive states.

    Returns:
        Input k [256] and output n [256] of each state, 0 to 15.
    """
    states = np.arange(STATES)
    group, quad = states >> 5, (states >> 3) & 3
    k = 2 * quad + (states & 1) + 8 * ((states >> 1) & 1)
    n = group + 8 * ((states >> 2) & 1)
    return k, n


def arrange_tiles(tiles: NDArray[Any]) -> NDArray[Any]:
    """Put the weights of tiles at their places in a matrix.

    Args:
        tiles: [N / 16, K / 16, 256] in the order of the states.

    Returns:
        A copy as [N, K].
    """
    rows, columns, _ = tiles.shape
    # The bits of a state's number, highest first: n 2..0, k 2..1, n 3, k 3, k 0.
    bits = tiles.reshape(rows, columns, 8, 4, 2, 2, 2)
    return bits.transpose(0, 4, 2, 1, 5, 3, 6).reshape(rows * TILE, columns * TILE)


def unpack_states(tiles: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Read all states of tiles; any bytes are a legal tile.

    Args:
        tiles: [..., 16 h] for a rate of h half bits.

    Returns:
        States [..., 256].

    Raises:
        ArtifactError: `encoding`: no rate has tiles of that many bytes.
    """
    num_bytes = tiles.shape[-1]
    first_byte, shift = _windows(num_bytes // 16 if num_bytes % 16 == 0 else 0)
    ring = np.concatenate([tiles, tiles[..., :2]], axis=-1).astype(np.uint32)
    # A window starts anywhere in a byte, so 16 bits of it lie in up to three bytes.
    triples = ring[..., :-2] | ring[..., 1:-1] << 8 | ring[..., 2:] << 16
    states = np.take(triples, first_byte, axis=-1)
    states >>= shift
    return states.astype(np.uint16)


def pack_states(states: NDArray[Any], bitrate_half_bits: int) -> NDArray[np.uint8]:
    """Write states as tiles.

    Args:
        states: Integers [..., 256], 0 to 65535, in which every state continues the one before it
            and the first continues the last.
        bitrate_half_bits: The rate.

    Returns:
        Tiles [..., 16 h].

    Raises:
        ArtifactError: `codec`: states that do not fit 16 bits or are not such a closed path;
            `encoding`: there is no such rate.
    """
    widths = step_widths(bitrate_half_bits)
    _check_states(states)
    words = states.astype(np.uint16)
    before = np.roll(words, 1, axis=-1) >> widths.astype(np.uint16)
    kept = words & ((1 << (STATE_BITS - widths)) - 1).astype(np.uint16)
    _refuse(kept != before, states, "does not continue the one before")
    # Every byte of a tile lies wholly in the window of the first state that ends behind it.
    ends = np.cumsum(widths)
    byte_ends = np.arange(8, ends[-1] + 1, 8)
    holder = np.searchsorted(ends, byte_ends)
    shift = (byte_ends - 8 + STATE_BITS - ends[holder]).astype(np.uint16)
    return (np.take(words, holder, axis=-1) >> shift).astype(np.uint8)


@cache
def codebook() -> NDArray[np.int16]:
    """The integer z of every state: int16 [65536], -510 to 495; read-only.

    z is the sum of the four bytes of the 32-bit product of the state and a constant, less 510.
    """
    products = np.arange(1 << STATE_BITS, dtype=np.uint32) * np.uint32(_MULTIPLIER)
    sums = products.view(np.uint8).reshape(-1, 4).sum(axis=1, dtype=np.int16)
    values: NDArray[np.int16] = sums - np.int16(_OFFSET)
    values.flags.writeable = False
    return values


@cache
def _windows(bitrate_half_bits: int) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Where each state starts in the ring: its first byte [256] and the bit in that byte [256]."""
    ends = np.cumsum(step_widths(bitrate_half_bits))
    starts = (ends - STATE_BITS) % ends[-1]
    return starts // 8, (starts % 8).astype(np.uint32)


def _check_states(states: NDArray[Any]) -> None:
    if states.dtype.kind not in "iu" or states.shape[-1:] != (STATES,):
        raise ArtifactError(
            "codec",
            "these are no trellis states",
            expected=f"integers [..., {STATES}]",
            found=f"{states.dtype.name} {list(states.shape)}",
        )
    _refuse((states < 0) | (states >= 1 << STATE_BITS), states, "does not fit 16 bits")


def _refuse(bad: NDArray[np.bool_], states: NDArray[Any], what: str) -> None:
    if bad.any():
        position = tuple(int(index) for index in np.argwhere(bad)[0])
        raise ArtifactError(
            "codec", f"trellis state {int(states[position])} at {list(position)} {what}"
        )
