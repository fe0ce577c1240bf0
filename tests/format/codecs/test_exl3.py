"""exl3_mul1: another implementation's words and values, the formula, blocks, slices, bad words."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ninfer_format import ArtifactError, Exl3Words, codec_for, exl3_values, open_artifact
from ninfer_format.codecs import exl3 as exl3_module
from ninfer_format.codecs.hadamard import hadamard_signs
from ninfer_format.codecs.trellis import arrange_tiles, codebook, tile_positions, unpack_states

ARTIFACT = Path(__file__).parents[2] / "data/conformance/artifacts/all_formats/all_formats.ninfer"
EXPECTED = json.loads(ARTIFACT.with_suffix(".expected.json").read_text("utf-8"))
OBJECTS = [entry for entry in EXPECTED["objects"] if entry.get("format") == "exl3_mul1"]
ARRAYS = np.load(ARTIFACT.with_suffix(".expected.npz"))


def codec(shape: tuple[int, int], rate: int = 4, divisors: int = 1) -> Any:
    return codec_for(
        "exl3_mul1", "trellis_t16_v1", shape, divisors=divisors, bitrate_half_bits=rate
    )


def codec_of_words(words: Exl3Words) -> Any:
    rows, columns, num_bytes = words.tiles.shape
    return codec((rows * 16, columns * 16), num_bytes // 16, words.suh.shape[0])


def random_words(rows: int, columns: int, rate: int, sets: int = 1, seed: int = 1) -> Exl3Words:
    random = np.random.default_rng(seed)
    scales = [
        (random.standard_normal(shape) / 10).astype(np.float32).view(np.uint32)
        for shape in ((sets, columns), (rows,))
    ]
    tiles = random.integers(0, 256, (rows // 16, columns // 16, 16 * rate)).astype(np.uint8)
    return Exl3Words(tiles, *scales)


@st.composite
def matrices(draw: st.DrawFn) -> Exl3Words:
    sets = draw(st.integers(1, 3))
    rows = 128 * sets * draw(st.integers(1, 2))
    columns = 128 * draw(st.integers(1, 3))
    rate = draw(st.integers(2, 16))
    return random_words(rows, columns, rate, sets, draw(st.integers(0, 2**32)))


# --- another implementation ------------------------------------------------------------------


def payload_of(entry: dict[str, Any]) -> np.ndarray:
    with open_artifact(ARTIFACT) as artifact:
        data = artifact.read_range(entry["offset"], entry["bytes"])
    assert hashlib.sha256(data).hexdigest() == entry["sha256"]
    return np.frombuffer(data, np.uint8)


def codec_of_entry(entry: dict[str, Any]) -> Any:
    return codec(tuple(entry["shape"]), entry["bitrate_half_bits"], entry.get("divisors", 1))


@pytest.mark.parametrize("entry", OBJECTS, ids=lambda entry: entry["id"])
def test_words_have_the_expected_bits(entry: dict[str, Any]) -> None:
    payload = payload_of(entry)
    words = codec_of_entry(entry).decode_words(payload)
    assert words.suh.tolist() == ARRAYS[f"{entry['id']}|suh_words"].tolist()
    assert words.svh.tolist() == ARRAYS[f"{entry['id']}|svh_words"].tolist()
    states = unpack_states(words.tiles)
    digest = hashlib.sha256(states.astype("<u2").tobytes()).hexdigest()
    assert digest == entry["states_uint16_le_sha256"]
    z = np.ascontiguousarray(arrange_tiles(codebook()[states]).T)
    assert np.array_equal(z, ARRAYS[f"{entry['id']}|z_int16_KxN"])
    assert hashlib.sha256(z.astype("<i2").tobytes()).hexdigest() == entry["z_int16_le_KxN_sha256"]
    assert codec_of_entry(entry).encode(words).tobytes() == payload.tobytes()
    codec_of_entry(entry).verify(payload)


@pytest.mark.parametrize("entry", OBJECTS, ids=lambda entry: entry["id"])
def test_values_agree_with_the_expected_rows(entry: dict[str, Any]) -> None:
    payload = payload_of(entry)
    values = exl3_values(codec_of_entry(entry).decode_words(payload))
    assert values.dtype == np.float64
    rows = ARRAYS[f"{entry['id']}|values_rows_index"]
    expected = ARRAYS[f"{entry['id']}|values_rows_f64"]
    # Sums that cancel keep the rounding of their terms, so small values count against the row.
    scale = np.abs(expected).max(axis=1, keepdims=True)
    assert (np.abs(values[rows] - expected) <= 1e-11 * scale).all()
    decoded = codec_of_entry(entry).decode(payload)
    assert decoded.dtype == np.float32
    assert decoded.tobytes() == values.astype(np.float32).tobytes()


def test_all_conformance_objects_are_covered() -> None:
    rates = [(entry["bitrate_half_bits"], entry.get("divisors", 1)) for entry in OBJECTS]
    assert rates == [(2, 1), (3, 1), (5, 2), (8, 1), (16, 1)]


# --- the formula -----------------------------------------------------------------------------


def slow_values(words: Exl3Words) -> np.ndarray:
    """diag(suh) H Z H diag(svh) on the transpose, one matrix of the stack after the other."""
    outputs, inputs, _ = words.tiles.shape
    N, K, sets = outputs * 16, inputs * 16, words.suh.shape[0]
    z = np.zeros((K, N))
    states = unpack_states(words.tiles)
    for n_tile in range(outputs):
        for k_tile in range(inputs):
            for t, (k, n) in enumerate(zip(*tile_positions(), strict=True)):
                product = int(states[n_tile, k_tile, t]) * 0x83DCD12D % 2**32
                z[16 * k_tile + k, 16 * n_tile + n] = sum(product.to_bytes(4, "big")) - 510
    hadamard = hadamard_signs() / np.sqrt(128)
    inputs_h = np.kron(np.eye(K // 128), hadamard)
    rows = N // sets
    outputs_h = np.kron(np.eye(rows // 128), hadamard)
    suh, svh = words.suh.view(np.float32), words.svh.view(np.float32)
    stack = []
    for index in range(sets):
        part = slice(index * rows, (index + 1) * rows)
        matrix = inputs_h @ z[:, part] @ outputs_h
        stack.append((suh[index].astype(np.float64)[:, None] * matrix * svh[part]).T)
    return np.concatenate(stack)


@pytest.mark.parametrize(("rate", "sets"), [(2, 1), (7, 2), (16, 1)])
def test_values_are_those_of_the_formula(rate: int, sets: int) -> None:
    words = random_words(256, 256, rate, sets)
    expected = slow_values(words)
    np.testing.assert_allclose(
        exl3_values(words), expected, rtol=1e-11, atol=1e-11 * np.abs(expected).max()
    )


def test_a_tile_of_zeros_has_one_value_a_block() -> None:
    """State 0 means -510, whose transform is its sum at one place of the block."""
    words = random_words(128, 256, 2)
    words.tiles[...] = 0
    words.suh[...] = np.float32(1).view(np.uint32)
    words.svh[...] = np.float32(0.25).view(np.uint32)
    expected = np.zeros((128, 256))
    expected[0, [0, 128]] = -510 * 128 / 4
    assert exl3_values(words).tolist() == expected.tolist()


def test_values_are_rounded_once() -> None:
    words = random_words(128, 128, 6)
    exact = exl3_values(words)
    decoded = codec_of_words(words).decode(codec_of_words(words).encode(words))
    assert np.array_equal(decoded, exact.astype(np.float32))
    sums = exact / words.svh.view(np.float32)[:, None] / words.suh.view(np.float32).astype(float)
    np.testing.assert_allclose(sums * 128, np.rint(sums * 128), rtol=0, atol=1e-6)


# --- words and bytes -------------------------------------------------------------------------


@settings(max_examples=40)
@given(matrices())
def test_words_survive(words: Exl3Words) -> None:
    payload = codec_of_words(words).encode(words)
    tiles, suh, svh = words.tiles.tobytes(), words.suh.tobytes(), words.svh.tobytes()
    assert payload.tobytes() == tiles + suh + svh, "an object of whole blocks has no padding"
    assert codec_of_words(words).padding == []
    decoded = codec_of_words(words).decode_words(payload)
    assert decoded.tiles.tobytes() == tiles
    assert decoded.suh.tobytes() == suh
    assert decoded.svh.tobytes() == svh
    assert decoded.suh.shape == words.suh.shape
    codec_of_words(words).verify(payload)


@settings(max_examples=40)
@given(st.data(), st.integers(2, 16))
def test_any_bytes_can_be_read_but_multipliers_are_verified(data: st.DataObject, rate: int) -> None:
    one = codec((128, 128), rate)
    seed = data.draw(st.integers(0, 2**32))
    payload = np.random.default_rng(seed).integers(0, 256, one.geometry.num_bytes).astype(np.uint8)
    floats = data.draw(hnp.arrays(np.uint32, 256))
    payload[one.geometry.planes["suh"].offset :] = floats.view(np.uint8)
    decoded = one.decode(payload)
    assert decoded.shape == (128, 128)
    words = one.decode_words(payload)
    if np.isfinite(floats.view(np.float32)).all():
        assert one.encode(words).tobytes() == payload.tobytes()
        with np.errstate(over="ignore"):
            assert decoded.tobytes() == exl3_values(words).astype(np.float32).tobytes()
    else:
        for check in (lambda: one.verify(payload), lambda: one.encode(words)):
            with pytest.raises(ArtifactError, match=r"illegal exl3_mul1 s[uv]h word") as raised:
                check()
            assert raised.value.category == "codec"


def test_values_beyond_binary32_become_infinite_and_signs_and_zeros_are_kept() -> None:
    words = random_words(128, 128, 4)
    words.suh[0, :3] = np.array([3e38, -0.0, -1.0], np.float32).view(np.uint32)
    words.svh[:] = np.float32(3e38).view(np.uint32)
    exact = exl3_values(words)
    decoded = codec_of_words(words).decode(codec_of_words(words).encode(words))
    assert np.isinf(decoded[:, 0]).any()
    assert np.isfinite(exact).all()
    assert not exact[:, 1].any()
    assert decoded[:, 1].tolist() == [0.0] * 128
    assert np.array_equal(np.signbit(decoded[:, 1]), np.signbit(exact[:, 1]))
    assert 0 < np.signbit(exact[:, 1]).sum() < 128


def test_infinite_multipliers_give_what_ieee_says_without_a_warning() -> None:
    words = random_words(128, 128, 4)
    words.tiles[...] = 0
    payload = codec_of_words(words).encode(words)
    plane = codec_of_words(words).geometry.planes["suh"]
    payload[plane.offset : plane.end].view(np.float32)[:] = np.inf
    decoded = codec_of_words(words).decode(payload)
    assert np.isinf(decoded[0, 0])
    assert np.isnan(decoded[1:]).all(), "zero times infinity"


# --- ranges and blocks -----------------------------------------------------------------------


@settings(max_examples=40)
@given(matrices(), st.data())
def test_ranges_and_blocks_are_cut_out_of_the_whole(words: Exl3Words, data: st.DataObject) -> None:
    one = codec_of_words(words)
    payload = one.encode(words)
    whole = one.decode(payload)
    begin = data.draw(st.integers(0, whole.size))
    end = data.draw(st.integers(begin, min(whole.size, begin + 1000)))
    found = one.decode_range(payload, begin, end)
    assert found.tobytes() == whole.reshape(-1)[begin:end].tobytes()
    rows = sorted(data.draw(st.integers(0, whole.shape[0])) for _ in range(2))
    columns = sorted(data.draw(st.integers(0, whole.shape[1])) for _ in range(2))
    block = one.decode_block(payload, tuple(rows), tuple(columns))
    assert block.shape == (rows[1] - rows[0], columns[1] - columns[0])
    assert np.array_equal(block, whole[rows[0] : rows[1], columns[0] : columns[1]])


def test_wide_matrices_are_decoded_without_seams() -> None:
    words = random_words(128, 128 * 19, 3)
    payload = codec_of_words(words).encode(words)
    assert np.array_equal(codec_of_words(words).decode(payload), exl3_values(words).astype("f4"))


@pytest.mark.parametrize(
    ("rows", "columns", "tiles"),
    [
        ((5, 6), (3, 4), 64),
        ((5, 6), (127, 129), 128),
        ((120, 140), (0, 1), 128),
        ((0, 384), (256, 300), 192),
        ((128, 256), (0, 384), 192),
        ((7, 7), (0, 384), 0),
        ((0, 384), (9, 9), 0),
    ],
)
def test_only_the_blocks_that_are_needed_are_read(
    rows: tuple[int, int], columns: tuple[int, int], tiles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = random_words(384, 384, 5, sets=3)
    payload = codec_of_words(words).encode(words)
    read = 0

    def counting(packed: np.ndarray) -> np.ndarray:
        nonlocal read
        read += packed.shape[0] * packed.shape[1]
        return unpack_states(packed)

    monkeypatch.setattr(exl3_module, "unpack_states", counting)
    codec_of_words(words).decode_block(payload, rows, columns)
    assert read == tiles
    if rows[1] - rows[0] == 1:
        read = 0
        begin, end = (rows[0] * 384 + column for column in columns)
        codec_of_words(words).decode_range(payload, begin, end)
        assert read == tiles


# --- rows ------------------------------------------------------------------------------------


def rows_of(words: Exl3Words, begin: int, end: int) -> Exl3Words:
    index = begin * words.suh.shape[0] // words.svh.size
    tiles = words.tiles[begin // 16 : end // 16]
    return Exl3Words(tiles, words.suh[index : index + 1], words.svh[begin:end])


@settings(max_examples=25)
@given(matrices())
def test_blocks_of_rows_add_up_to_the_object(words: Exl3Words) -> None:
    one = codec_of_words(words)
    payload = np.full(one.geometry.num_bytes, 0xEE, np.uint8)
    suh = one.geometry.planes["suh"]
    for first in reversed(range(0, one.rows, 128)):
        pieces = one.encode_rows(rows_of(words, first, first + 128), first)
        for piece in pieces:
            payload[piece.offset : piece.offset + piece.data.size] = piece.data
        shared = [piece for piece in pieces if piece.shared]
        assert [suh.offset <= piece.offset < suh.end for piece in shared] == [True]
        assert len(pieces) == 3
    assert payload.tobytes() == one.encode(words).tobytes()


@settings(max_examples=25)
@given(matrices(), st.data())
def test_rows_can_be_cut_out_as_an_object_of_their_own(
    words: Exl3Words, data: st.DataObject
) -> None:
    one = codec_of_words(words)
    payload = one.encode(words)
    blocks = one.rows // one.divisors // 128
    matrix = data.draw(st.integers(0, one.divisors - 1)) * blocks
    edges = data.draw(st.sets(st.integers(0, blocks), min_size=2, max_size=2))
    begin, end = ((matrix + edge) * 128 for edge in sorted(edges))
    cut = one.slice_rows(payload, begin, end)
    part = one.row_slice(begin, end).codec
    assert (part.shape, part.divisors) == ((end - begin, one.shape[1]), 1)
    assert part.bitrate_half_bits == one.bitrate_half_bits
    assert cut.tobytes() == part.encode(rows_of(words, begin, end)).tobytes()
    assert np.array_equal(part.decode(cut), one.decode(payload)[begin:end])


@pytest.mark.parametrize(
    ("begin", "end"),
    [(0, 64), (64, 192), (128, 384), (0, 512), (128, 128), (256, 128), (384, 640), (-128, 128)],
)
def test_other_rows_cannot_be_cut_out(begin: int, end: int) -> None:
    words = random_words(512, 128, 4, sets=2)
    one = codec_of_words(words)
    payload = one.encode(words)
    for cut in (one.row_slice, lambda begin, end: one.slice_rows(payload, begin, end)):
        with pytest.raises(ArtifactError) as raised:
            cut(begin, end)
        assert raised.value.category == "codec"
    if begin < end:
        part = random_words(end - begin, 128, 4)
        with pytest.raises(ArtifactError) as raised:
            one.encode_rows(part, begin)
        assert raised.value.category == "codec"


def test_single_rows_cannot_be_gathered() -> None:
    words = random_words(128, 128, 4)
    one = codec_of_words(words)
    assert one.row_block == 128
    with pytest.raises(ArtifactError, match="cannot be gathered"):
        one.gather_rows(one.encode(words), [0])


# --- words that are refused ------------------------------------------------------------------


@pytest.mark.parametrize("word", [0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF])
def test_multipliers_that_are_not_finite_are_refused(word: int) -> None:
    words = random_words(256, 128, 4, sets=2)
    words.svh[200] = word
    with pytest.raises(ArtifactError, match=rf"svh word at \[200\].*found {word:#x}") as raised:
        codec_of_words(words).validate(words)
    assert raised.value.category == "codec"
    part = Exl3Words(words.tiles[8:], words.suh[1:], words.svh[128:])
    with pytest.raises(ArtifactError, match=r"svh word at \[200\]"):
        codec_of_words(words).encode_rows(part, 128)
    words = random_words(256, 128, 4, sets=2)
    words.suh[1, 7] = word
    with pytest.raises(ArtifactError, match=rf"suh word .*at \[1, 7\].*found {word:#x}"):
        exl3_values(words)


def test_words_that_do_not_fit_are_refused() -> None:
    fitting = random_words(128, 128, 4)
    tiles, suh, svh = fitting.tiles, fitting.suh, fitting.svh
    cases = [
        Exl3Words(tiles.astype(np.int8), suh, svh),
        Exl3Words(tiles[:, :, :-1], suh, svh),
        Exl3Words(tiles[:, :-1], suh, svh),
        Exl3Words(tiles.reshape(-1), suh, svh),
        Exl3Words(tiles, suh[0], svh),
        Exl3Words(tiles, np.repeat(suh, 2, axis=0), svh),
        Exl3Words(tiles, suh[:0], svh),
        Exl3Words(tiles, suh.view(np.float32), svh),
        Exl3Words(tiles, suh, svh.view(np.float32)),
        Exl3Words(tiles, suh, svh[:-1]),
        Exl3Words(tiles, suh, np.array(0, np.uint32)),
    ]
    for words in cases:
        for check in (codec((128, 128)).validate, codec((128, 128)).encode):
            with pytest.raises(ArtifactError) as raised:
                check(words)
            assert raised.value.category == "codec"
        for read in (lambda words: codec((128, 128)).encode_rows(words, 0), exl3_values):
            with pytest.raises(ArtifactError):
                read(words)


def test_words_of_any_memory_order_are_encoded_alike() -> None:
    words = random_words(256, 256, 5)
    strided = Exl3Words(
        np.asfortranarray(words.tiles),
        np.asfortranarray(words.suh),
        np.repeat(words.svh, 2)[::2],
    )
    encoded = codec_of_words(words).encode(strided)
    assert encoded.tobytes() == codec_of_words(words).encode(words).tobytes()


@pytest.mark.parametrize("rate", [None, 1, 17, 4.0])
def test_other_rates_are_refused(rate: Any) -> None:
    with pytest.raises(ArtifactError) as raised:
        codec((128, 128), rate)
    assert raised.value.category == "encoding"


def test_payloads_at_odd_addresses_are_decoded() -> None:
    words = random_words(128, 128, 4)
    payload = codec_of_words(words).encode(words)
    odd = np.concatenate([np.zeros(1, np.uint8), payload])[1:]
    assert np.array_equal(codec_of_words(words).decode(odd), codec_of_words(words).decode(payload))
