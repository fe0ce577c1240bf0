"""Grouped integers: worked bytes, a slow reference decoder, row views, illegal words."""

from __future__ import annotations

import json
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


def codec(name: str, shape: tuple[int, ...]) -> Any:
    return codec_for(name, "row_split_k128_v1", shape)


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
    payload = codec(name, (1, 70)).encode(words)
    assert payload.tobytes() == bytes(expected)
    values = codec(name, (1, 70)).decode(payload)
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
    payload = codec(name, (rows, columns)).encode(words)
    decoded = codec(name, (rows, columns)).decode_words(payload)
    assert np.array_equal(decoded.codes, words.codes)
    assert np.array_equal(decoded.scales, words.scales)
    values = codec(name, (rows, columns)).decode(payload)
    assert values.tolist() == slow_decode(payload.tobytes(), name, rows, columns)
    codec(name, (rows, columns)).verify(payload)


def test_large_matrices_are_decoded_in_blocks_without_seams() -> None:
    random = np.random.default_rng(3)
    values = random.standard_normal((700, 1000)).astype(np.float32)
    words = grouped_absmax(values, "q6_g64_fp16")
    payload = codec("q6_g64_fp16", values.shape).encode(words)
    decoded = codec("q6_g64_fp16", values.shape).decode(payload)
    scales = np.repeat(words.scales.view(np.float16).astype(np.float32), 64, axis=1)[:, :1000]
    assert np.array_equal(decoded, words.codes * scales)
    assert np.array_equal(
        codec("q6_g64_fp16", values.shape).decode_words(payload).codes, words.codes
    )


ROW_VIEWS = Path(__file__).parents[2] / "data/conformance/vectors/row_views"


@pytest.mark.parametrize(
    "case", json.loads(ROW_VIEWS.with_suffix(".json").read_text()), ids=lambda case: case["case"]
)
def test_row_views_match_another_implementation(case: dict[str, Any]) -> None:
    arrays = np.load(ROW_VIEWS.with_suffix(".npz"))
    whole = codec(case["format"], tuple(case["shape"]))
    payload = arrays[f"{case['case']}|payload"]
    begin, end = case["slice"]
    spans = [[span.source, span.length] for span in whole.row_slice(begin, end).spans]
    assert spans == [span for span in case["slice_spans"].values() if span[1]]
    pieces = whole.encode_rows(whole.decode_words(payload).rows(begin, end), begin)
    assert [[piece.offset, piece.data.size] for piece in pieces] == spans
    for piece in pieces:
        stored = payload[piece.offset : piece.offset + piece.data.size]
        assert piece.data.tobytes() == stored.tobytes()
    sliced = whole.slice_rows(payload, begin, end)
    assert sliced.tobytes() == arrays[f"{case['case']}|slice_payload"].tobytes()
    gathered = whole.gather_rows(payload, case["gather"])
    assert gathered.tobytes() == arrays[f"{case['case']}|gather_payload"].tobytes()


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
        codec(name, (3, 70)).encode(words)
    assert raised.value.category == "codec"
    with pytest.raises(ArtifactError, match=r"code at \[12, 69\]"):
        codec(name, (20, 70)).encode_rows(words, 10)


@pytest.mark.parametrize("word", [0x8000, 0x8001, 0x7C00, 0x7C01, 0xFC00, 0xFFFF])
@pytest.mark.parametrize("name", FORMATS)
def test_scales_outside_the_format_are_refused(name: str, word: int) -> None:
    words = legal_words(name)
    words.scales[1, 1] = word
    with pytest.raises(ArtifactError, match=rf"scale word at \[1, 1\].*found {word:#06x}"):
        codec(name, (3, 70)).validate(words)


@pytest.mark.parametrize("word", [0x0001, 0x03FF, 0x7BFF])
@pytest.mark.parametrize("name", FORMATS)
def test_the_outermost_words_are_legal(name: str, word: int) -> None:
    words = legal_words(name)
    words.scales[:] = word
    words.codes[0] = code_limits(name)[0]
    words.codes[1] = code_limits(name)[1]
    payload = codec(name, (3, 70)).encode(words)
    codec(name, (3, 70)).verify(payload)
    scale = float(np.uint16(word).view(np.float16))
    wanted = [code_limits(name)[0] * scale, code_limits(name)[1] * scale, scale]
    assert codec(name, (3, 70)).decode(payload)[:, 0].tolist() == wanted


@pytest.mark.parametrize("name", FORMATS)
def test_a_zero_scale_needs_zero_codes(name: str) -> None:
    words = legal_words(name)
    group = FORMATS[name][1]
    words.scales[1, 1] = 0
    with pytest.raises(ArtifactError, match=f"zero scale.*row 1, columns from {group}"):
        codec(name, (3, 70)).validate(words)
    words.codes[1, group : 2 * group] = 0
    codec(name, (3, 70)).validate(words)


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
        codec("q4_g64_fp16", (3, 70)).encode(GroupedWords(codes, scales))
    assert raised.value.category == "codec"


@pytest.mark.parametrize("name", FORMATS)
def test_padding_that_is_not_zero_is_found(name: str) -> None:
    payload = codec(name, (3, 70)).encode(legal_words(name))
    geometry = codec(name, (3, 70)).geometry
    for offset, length in codec(name, (3, 70)).padding:
        spoiled = payload.copy()
        spoiled[offset + length - 1] = 1
        with pytest.raises(
            ArtifactError, match=rf"not zero at byte {offset + length - 1} \(expected 0, found 1\)"
        ):
            codec(name, (3, 70)).verify(spoiled)
    spoiled = payload.copy()
    spoiled[geometry.planes["base"].num_bytes - 1] |= 0x10
    with pytest.raises(ArtifactError, match="padding is not zero"):
        codec(name, (3, 70)).verify(spoiled)
    assert (
        codec(name, (3, 70)).decode(spoiled).tolist()
        == codec(name, (3, 70)).decode(payload).tolist()
    ), "padding does not change values"
