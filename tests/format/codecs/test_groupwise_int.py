"""Grouped integers: worked bytes, a slow reference decoder, row blocks, illegal words, speed."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_format import ArtifactError, GroupedWords, codec_for, grouped_absmax

FORMATS = {
    "q4_g64_fp16": (4, 64),
    "q5_g64_fp16": (5, 64),
    "q6_g64_fp16": (6, 64),
    "q8_g32_fp16": (8, 32),
}
HALF = 0x3800  # 0.5 as binary16


def codec(name: str) -> Any:
    return codec_for(name, "row_split_k128_v1")


def code_limits(name: str) -> tuple[int, int]:
    bits = FORMATS[name][0]
    return (-127, 127) if bits == 8 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@pytest.mark.parametrize(
    ("name", "codes", "base", "high", "scale", "offsets", "size"),
    [
        ("q4_g64_fp16", [-8, 7, -1, 0, 1, 2, 3, -4], "780F21C3", "", "00380000", (256, 256), 260),
        (
            "q5_g64_fp16",
            [-16, 15, -1, 0, 1, -9, 8, -8],
            "F00F7188",
            "A500",
            "00380000",
            (256, 512),
            516,
        ),
        (
            "q6_g64_fp16",
            [-32, 31, -1, 0, 16, -17, 20, -20],
            "F00FF0C4",
            "3699",
            "00380000",
            (256, 512),
            516,
        ),
        (
            "q8_g32_fp16",
            [-127, 127, -1, 0, 1, -64, 64, 5],
            "817FFF0001C04005",
            "",
            "0038000000000000",
            (256, 256),
            264,
        ),
    ],
)
def test_worked_bytes(
    name: str,
    codes: list[int],
    base: str,
    high: str,
    scale: str,
    offsets: tuple[int, int],
    size: int,
) -> None:
    """A row of 70 columns with these first codes; layouts specification, section 3."""
    groups = -(-70 // FORMATS[name][1])
    words = GroupedWords(np.zeros((1, 70), np.int8), np.zeros((1, groups), np.uint16))
    words.codes[0, :8] = codes
    words.scales[0, 0] = HALF
    expected = bytearray(size)
    for offset, text in ((0, base), (offsets[0], high), (offsets[1], scale)):
        data = bytes.fromhex(text)
        expected[offset : offset + len(data)] = data
    payload = codec(name).encode(words, (1, 70))
    assert payload.tobytes() == bytes(expected)
    values = codec(name).decode(payload, (1, 70))
    assert values[0, :8].tolist() == [code / 2 for code in codes]


def slow_decode(payload: bytes, name: str, rows: int, columns: int) -> list[list[float]]:
    """One lane at a time, straight from the text of the layout."""
    bits, group = FORMATS[name]
    groups = -(-columns // 128) * 128 // group
    high_bytes = {4: 0, 5: 8, 6: 16, 8: 0}[bits]
    high_at = -(-rows * groups * 32 // 256) * 256
    scale_at = high_at + -(-rows * groups * high_bytes // 256) * 256
    values = []
    for row in range(rows):
        line = []
        for column in range(columns):
            g, lane = row * groups + column // group, column % group
            base = payload[g * 32 : (g + 1) * 32]
            high = int.from_bytes(payload[high_at + g * high_bytes :][:high_bytes], "little")
            if bits == 8:
                u = base[lane]
            else:
                u = base[lane // 2] >> (4 * (lane % 2)) & 15
                extra = bits - 4
                u |= (high >> (lane * extra) & ((1 << extra) - 1)) << 4
            code = u - 2**bits if u >= 2 ** (bits - 1) else u
            scale = np.frombuffer(payload, "<f2", 1, scale_at + 2 * g)[0]
            line.append(float(np.float32(scale) * np.float32(code)))
        values.append(line)
    return values


@st.composite
def matrices(draw: st.DrawFn) -> tuple[str, GroupedWords]:
    name = draw(st.sampled_from(sorted(FORMATS)))
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 270))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    low, high = code_limits(name)
    group = FORMATS[name][1]
    scales = random.integers(0, 0x7C00, (rows, -(-columns // group))).astype(np.uint16)
    scales[random.random(scales.shape) < 0.2] = 0
    codes = random.integers(low, high + 1, (rows, columns)).astype(np.int8)
    codes[np.repeat(scales == 0, group, axis=1)[:, :columns]] = 0
    return name, GroupedWords(codes, scales)


@given(matrices())
def test_words_and_values_survive(matrix: tuple[str, GroupedWords]) -> None:
    name, words = matrix
    rows, columns = words.codes.shape
    payload = codec(name).encode(words, (rows, columns))
    decoded = codec(name).decode_words(payload, (rows, columns))
    assert np.array_equal(decoded.codes, words.codes)
    assert np.array_equal(decoded.scales, words.scales)
    values = codec(name).decode(payload, (rows, columns))
    assert values.tolist() == slow_decode(payload.tobytes(), name, rows, columns)
    codec(name).verify(payload, (rows, columns))


@given(matrices(), st.data())
def test_a_range_is_a_slice_of_the_whole(
    matrix: tuple[str, GroupedWords], data: st.DataObject
) -> None:
    name, words = matrix
    shape = words.codes.shape
    payload = codec(name).encode(words, shape)
    begin = data.draw(st.integers(0, words.codes.size))
    end = data.draw(st.integers(begin, words.codes.size))
    whole = codec(name).decode(payload, shape).reshape(-1)
    found = codec(name).decode_range(payload, shape, begin, end)
    assert found.tobytes() == whole[begin:end].tobytes()


@given(matrices(), st.data())
def test_blocks_of_rows_and_padding_add_up_to_the_object(
    matrix: tuple[str, GroupedWords], data: st.DataObject
) -> None:
    name, words = matrix
    shape = words.codes.shape
    cuts = data.draw(st.sets(st.integers(1, shape[0] - 1))) if shape[0] > 1 else set()
    edges = [0, *sorted(cuts), shape[0]]
    payload = np.full(codec(name).geometry(shape).num_bytes, 0xEE, np.uint8)
    for begin, end in pairwise(edges):
        for offset, piece in codec(name).encode_rows(words.rows(begin, end), shape, begin):
            payload[offset : offset + piece.size] = piece
    for offset, length in codec(name).padding(shape):
        assert set(payload[offset : offset + length]) == {0xEE}, "padding is written once"
        payload[offset : offset + length] = 0
    assert payload.tobytes() == codec(name).encode(words, shape).tobytes()


def test_large_matrices_are_decoded_in_blocks_without_seams() -> None:
    random = np.random.default_rng(3)
    values = random.standard_normal((700, 1000)).astype(np.float32)
    words = grouped_absmax(values, "q6_g64_fp16")
    payload = codec("q6_g64_fp16").encode(words, values.shape)
    decoded = codec("q6_g64_fp16").decode(payload, values.shape)
    scales = np.repeat(words.scales.view(np.float16).astype(np.float32), 64, axis=1)[:, :1000]
    assert np.array_equal(decoded, words.codes * scales)
    assert np.array_equal(
        codec("q6_g64_fp16").decode_words(payload, values.shape).codes, words.codes
    )


ROW_VIEWS = Path(__file__).parents[2] / "data/conformance/vectors/row_views"


@pytest.mark.parametrize(
    "case", json.loads(ROW_VIEWS.with_suffix(".json").read_text()), ids=lambda case: case["case"]
)
def test_row_views_match_another_implementation(case: dict[str, Any]) -> None:
    arrays = np.load(ROW_VIEWS.with_suffix(".npz"))
    rows, columns = case["shape"]
    payload = arrays[f"{case['case']}|payload"]
    words = codec(case["format"]).decode_words(payload, (rows, columns))
    begin, end = case["slice"]
    pieces = codec(case["format"]).encode_rows(words.rows(begin, end), (rows, columns), begin)
    spans = [[offset, piece.size] for offset, piece in pieces]
    assert spans == [span for span in case["slice_spans"].values() if span[1]]
    for offset, piece in pieces:
        assert piece.tobytes() == payload[offset : offset + piece.size].tobytes()
    sliced = codec(case["format"]).encode(words.rows(begin, end), (end - begin, columns))
    assert sliced.tobytes() == arrays[f"{case['case']}|slice_payload"].tobytes()
    gather = case["gather"]
    gathered = GroupedWords(words.codes[gather], words.scales[gather])
    encoded = codec(case["format"]).encode(gathered, (len(gather), columns))
    assert encoded.tobytes() == arrays[f"{case['case']}|gather_payload"].tobytes()


def legal_words(name: str) -> GroupedWords:
    groups = -(-70 // FORMATS[name][1])
    return GroupedWords(np.ones((3, 70), np.int8), np.full((3, groups), HALF, np.uint16))


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("q4_g64_fp16", 8),
        ("q4_g64_fp16", -9),
        ("q5_g64_fp16", 16),
        ("q5_g64_fp16", -17),
        ("q6_g64_fp16", 32),
        ("q6_g64_fp16", -33),
        ("q8_g32_fp16", -128),
    ],
)
def test_codes_outside_the_format_are_refused(name: str, word: int) -> None:
    words = legal_words(name)
    words.codes[2, 69] = word
    with pytest.raises(ArtifactError, match=rf"code at \[2, 69\].*found {word}") as raised:
        codec(name).encode(words, (3, 70))
    assert raised.value.category == "codec"
    with pytest.raises(ArtifactError, match=r"code at \[12, 69\]"):
        codec(name).encode_rows(words, (20, 70), 10)


@pytest.mark.parametrize("word", [0x8000, 0x8001, 0x7C00, 0x7C01, 0xFC00, 0xFFFF])
@pytest.mark.parametrize("name", FORMATS)
def test_scales_outside_the_format_are_refused(name: str, word: int) -> None:
    words = legal_words(name)
    words.scales[1, 1] = word
    with pytest.raises(ArtifactError, match=rf"scale word at \[1, 1\].*found {word:#06x}"):
        codec(name).validate(words, (3, 70))


def test_groups_of_zeros_are_checked_about_as_fast_as_others() -> None:
    shape = (512, 8192)
    words = GroupedWords(np.zeros(shape, np.int8), np.zeros((512, 128), np.uint16))
    others = GroupedWords(words.codes, np.full((512, 128), 0x3C00, np.uint16))

    def seconds(checked: GroupedWords) -> float:
        begin = time.process_time()
        codec("q4_g64_fp16").validate(checked, shape)
        return time.process_time() - begin

    # Group by group in Python it takes fifty times as long.
    assert min(seconds(words) for _ in range(5)) < 15 * min(seconds(others) for _ in range(5))


@pytest.mark.parametrize("name", FORMATS)
def test_a_zero_scale_needs_zero_codes(name: str) -> None:
    words = legal_words(name)
    group = FORMATS[name][1]
    words.scales[1, 1] = 0
    with pytest.raises(ArtifactError, match=f"zero scale.*row 1, columns from {group}"):
        codec(name).validate(words, (3, 70))
    words.codes[1, group : 2 * group] = 0
    codec(name).validate(words, (3, 70))


@pytest.mark.parametrize(
    ("codes", "scales"),
    [
        pytest.param(np.ones((3, 70), np.int16), np.ones((3, 2), np.uint16), id="wide codes"),
        pytest.param(np.ones((3, 70), np.int8), np.ones((3, 2), np.float16), id="float scales"),
        pytest.param(np.ones((3, 70), np.int8), np.ones((3, 3), np.uint16), id="extra group"),
        pytest.param(np.ones((3, 71), np.int8), np.ones((3, 2), np.uint16), id="extra column"),
        pytest.param(np.ones((4, 70), np.int8), np.ones((4, 2), np.uint16), id="extra row"),
        pytest.param(np.ones(210, np.int8), np.ones((3, 2), np.uint16), id="flat"),
    ],
)
def test_words_that_do_not_fit_are_refused(codes: np.ndarray, scales: np.ndarray) -> None:
    with pytest.raises(ArtifactError) as raised:
        codec("q4_g64_fp16").encode(GroupedWords(codes, scales), (3, 70))
    assert raised.value.category == "codec"


@pytest.mark.parametrize("name", FORMATS)
def test_padding_that_is_not_zero_is_found(name: str) -> None:
    payload = codec(name).encode(legal_words(name), (3, 70))
    geometry = codec(name).geometry((3, 70))
    for offset, length in codec(name).padding((3, 70)):
        spoiled = payload.copy()
        spoiled[offset + length - 1] = 1
        with pytest.raises(
            ArtifactError, match=f"padding is not zero at byte {offset + length - 1}"
        ):
            codec(name).verify(spoiled, (3, 70))
    spoiled = payload.copy()
    spoiled[geometry.planes["base"].num_bytes - 1] |= 0x10
    with pytest.raises(ArtifactError, match="padding is not zero"):
        codec(name).verify(spoiled, (3, 70))
    assert (
        codec(name).decode(spoiled, (3, 70)).tolist()
        == codec(name).decode(payload, (3, 70)).tolist()
    ), "padding does not change values"


def test_a_payload_of_another_length_is_refused() -> None:
    payload = codec("q4_g64_fp16").encode(legal_words("q4_g64_fp16"), (3, 70))
    for method in ("decode", "decode_words", "verify"):
        with pytest.raises(ArtifactError, match="wrong length"):
            getattr(codec("q4_g64_fp16"), method)(payload[:-1], (3, 70))
