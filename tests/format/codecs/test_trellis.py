from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ninfer_format import ArtifactError
from ninfer_format.codecs.trellis import (
    arrange_tiles,
    codebook,
    pack_states,
    step_widths,
    tile_bytes,
    tile_positions,
    unpack_states,
)

VECTORS = Path(__file__).parents[2] / "data/conformance/vectors"
TILES = np.load(VECTORS / "exl3_tiles.npz")
CODEBOOK = json.loads((VECTORS / "exl3_codebook.json").read_text())
RATES_OF_VECTORS = sorted({int(key[2:].split("|")[0]) for key in TILES.files if key[:2] == "hb"})
RATES = st.integers(2, 16)


@pytest.mark.parametrize("rate", RATES_OF_VECTORS)
def test_vectors_of_every_rate(rate: int) -> None:
    tiles, states = TILES[f"hb{rate}|tiles"], TILES[f"hb{rate}|states"]
    assert step_widths(rate).tolist() == TILES[f"hb{rate}|step_widths"].tolist()
    unpacked = unpack_states(tiles)
    assert unpacked.dtype == np.uint16
    assert unpacked.tolist() == states.tolist()
    packed = pack_states(states, rate)
    assert packed.dtype == np.uint8
    assert packed.tolist() == tiles.tolist()
    with pytest.raises(ArtifactError, match="does not continue the one before") as raised:
        pack_states(TILES[f"hb{rate}|broken_states"], rate)
    assert raised.value.category == "codec"


def test_vectors_cover_whole_and_half_rates() -> None:
    assert RATES_OF_VECTORS == [2, 3, 4, 5, 6, 8, 9, 11, 12, 14, 16]


def test_positions_are_those_of_the_vectors() -> None:
    k, n = tile_positions()
    assert k.tolist() == TILES["tile_order|k"].tolist()
    assert n.tolist() == TILES["tile_order|n"].tolist()
    assert list(zip(k.tolist(), n.tolist(), strict=True))[:12] == [
        *((0, 0), (1, 0), (8, 0), (9, 0), (0, 8), (1, 8), (8, 8), (9, 8)),
        *((2, 0), (3, 0), (10, 0), (11, 0)),
    ]
    assert (k[32], n[32]) == (0, 1)
    assert len(set(zip(k.tolist(), n.tolist(), strict=True))) == 256


def test_arranged_weights_lie_at_their_positions() -> None:
    tiles = np.arange(2 * 3 * 256).reshape(2, 3, 256)
    matrix = arrange_tiles(tiles)
    assert matrix.shape == (32, 48)
    for row in range(2):
        for column in range(3):
            for t, (k, n) in enumerate(zip(*tile_positions(), strict=True)):
                assert matrix[16 * row + n, 16 * column + k] == tiles[row, column, t]


@pytest.mark.parametrize(
    ("rate", "bit", "first", "last"),
    [
        (4, 0, [0x4000, 0x1000, 0x400, 0x100, 0x40, 0x10, 4, 1, 0], 0),
        (3, 0, [0x8000, 0x2000, 0x1000, 0x400, 0x200, 0x80, 0x40, 0x10, 8, 2, 1, 0], 0),
        (3, 383, [0x4000, 0x1000, 0x800, 0x200, 0x100, 0x40, 0x20, 8, 4, 1, 0], 0x8000),
    ],
)
def test_worked_states(rate: int, bit: int, first: list[int], last: int) -> None:
    """One bit of the ring; layouts specification, section 7."""
    tile = np.zeros(16 * rate, np.uint8)
    tile[bit // 8] = 1 << bit % 8
    states = unpack_states(tile).tolist()
    assert states == first + [0] * (255 - len(first)) + [last]


def slow_states(tile: bytes, rate: int) -> list[int]:
    """One bit at a time, straight from the text of the layout."""
    ring = [byte >> i & 1 for byte in tile for i in range(8)]
    states, end = [], 0
    for t in range(256):
        end += rate // 2 + (rate & t & 1)
        states.append(sum(ring[(end - 16 + j) % len(ring)] << j for j in range(16)))
    return states


@given(st.data(), RATES)
def test_any_bytes_are_states_and_states_are_those_bytes(data: st.DataObject, rate: int) -> None:
    tiles = data.draw(hnp.arrays(np.uint8, (2, 1, 16 * rate)))
    states = unpack_states(tiles)
    assert states[0, 0].tolist() == slow_states(tiles[0, 0].tobytes(), rate)
    assert pack_states(states, rate).tolist() == tiles.tolist()
    assert pack_states(states.astype(np.int64), rate).tolist() == tiles.tolist()


@given(st.data(), RATES)
def test_a_path_of_chosen_suffixes_survives(data: st.DataObject, rate: int) -> None:
    widths = step_widths(rate).tolist()
    suffixes = [data.draw(st.integers(0, 2**width - 1)) for width in widths]
    state, states = 0, []
    # Once around fills the window, the second round is the closed path.
    for width, suffix in [*zip(widths, suffixes, strict=True)] * 2:
        state = state >> width | suffix << (16 - width)
        states.append(state)
    path = np.array(states[256:])
    assert unpack_states(pack_states(path, rate)).tolist() == path.tolist()


@given(st.data(), RATES, st.integers(0, 255))
def test_a_path_broken_anywhere_is_refused(data: st.DataObject, rate: int, step: int) -> None:
    states = unpack_states(data.draw(hnp.arrays(np.uint8, (1, 16 * rate)))).astype(np.int64)
    # The bits that the next state keeps; where a step renews the whole upper byte, the lower one.
    states[0, step] ^= 1 << int(step_widths(rate)[(step + 1) % 256])
    with pytest.raises(ArtifactError, match="does not continue the one before"):
        pack_states(states, rate)


@given(RATES, st.integers(0, 65535))
def test_a_path_that_does_not_close_is_refused(rate: int, first: int) -> None:
    widths = step_widths(rate).tolist()
    path = [first]
    for width in widths[1:]:
        path.append(path[-1] >> width)
    assert path[-1] == 0, "all bits after the first state are 0"
    if first % (1 << 16 - widths[0]) == 0:
        assert unpack_states(pack_states(np.array(path), rate)).tolist() == path
    else:
        with pytest.raises(ArtifactError, match=r"at \[0\] does not continue the one before"):
            pack_states(np.array(path), rate)


@pytest.mark.parametrize(
    ("states", "message"),
    [
        pytest.param(np.full((2, 256), 65536), r"state 65536 at \[0, 0\] does not fit", id="wide"),
        pytest.param(np.full(256, -1), r"state -1 at \[0\] does not fit", id="negative"),
        pytest.param(np.zeros(255, np.uint16), "no trellis states", id="too few"),
        pytest.param(np.zeros((256, 2), np.uint16), "no trellis states", id="wrong axis"),
        pytest.param(np.zeros(256), "no trellis states", id="floats"),
        pytest.param(np.uint16(0), "no trellis states", id="scalar"),
    ],
)
def test_other_states_are_refused(states: Any, message: str) -> None:
    with pytest.raises(ArtifactError, match=message) as raised:
        pack_states(np.asarray(states), 4)
    assert raised.value.category == "codec"


@pytest.mark.parametrize("rate", [None, 0, 1, 17, True, 4.0, -2])
def test_other_rates_are_refused(rate: Any) -> None:
    for function in (tile_bytes, step_widths):
        with pytest.raises(ArtifactError, match=r"no such bit rate.*2 to 16") as raised:
            function(rate)
        assert raised.value.category == "encoding"


@pytest.mark.parametrize("num_bytes", [0, 16, 31, 33, 272, 2**20])
def test_tiles_of_other_sizes_are_refused(num_bytes: int) -> None:
    with pytest.raises(ArtifactError, match="no such bit rate"):
        unpack_states(np.zeros((1, num_bytes), np.uint8))


def test_a_tile_has_the_bits_of_its_rate() -> None:
    for rate in range(2, 17):
        assert tile_bytes(rate) == 16 * rate
        assert step_widths(rate).sum() == 128 * rate


def test_codebook_is_the_expected_table() -> None:
    z = codebook()
    assert z.shape == (CODEBOOK["states"],)
    assert z.dtype == np.int16
    digest = hashlib.sha256(z.astype("<i2").tobytes()).hexdigest()
    assert digest == CODEBOOK["z_int16_le_sha256"]
    assert (int(z.min()), int(z.max())) == (CODEBOOK["min"], CODEBOOK["max"])
    assert int(z.argmin()) == CODEBOOK["argmin_first"]
    assert int(z.argmax()) == CODEBOOK["argmax_first"]
    assert int(z.sum()) == CODEBOOK["sum"]
    assert int((z.astype(np.int64) ** 2).sum()) == CODEBOOK["sum_of_squares"]
    histogram = np.bincount(z.astype(np.int64) + 510, minlength=1021).astype("<i4")
    found = hashlib.sha256(histogram.tobytes()).hexdigest()
    assert found == CODEBOOK["histogram_int32_le_z_plus_510_sha256"]
    for state, value in CODEBOOK["samples"].items():
        assert z[int(state)] == value


@given(st.integers(0, 65535))
def test_codebook_is_the_sum_of_the_bytes_of_a_product(state: int) -> None:
    product = state * 0x83DCD12D % 2**32
    assert codebook()[state] == sum(product.to_bytes(4, "big")) - 510


def test_the_codebook_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        codebook()[0] = 0
