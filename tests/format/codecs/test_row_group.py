"""q4_g32_fp16_rows: worked bytes, a slow reference decoder, rows, illegal words."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ninfer_format import ArtifactError, GroupedWords, codec_for, open_artifact

ARTIFACT = Path(__file__).parents[2] / "data/conformance/artifacts/all_formats/all_formats.ninfer"
ARRAYS = np.load(ARTIFACT.with_suffix(".expected.npz"))
QUARTER = 0x3400  # 0.25 as binary16


def codec(*shape: int) -> Any:
    return codec_for("q4_g32_fp16_rows", "row_group_v1", shape)


def codec_of_words(words: GroupedWords) -> Any:
    return codec(*words.codes.shape)


@st.composite
def matrices(draw: st.DrawFn) -> GroupedWords:
    rows, groups = draw(st.integers(1, 9)), draw(st.integers(1, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    scales = random.integers(0, 0x7C00, (rows, groups)).astype(np.uint16)
    scales[random.random(scales.shape) < 0.2] = 0
    codes = random.integers(-8, 8, (rows, 32 * groups)).astype(np.int8)
    codes[np.repeat(scales == 0, 32, axis=1)] = 0
    return GroupedWords(codes, scales)


def test_worked_bytes() -> None:
    """The example of the layouts specification, section 6."""
    words = GroupedWords(np.zeros((1, 32), np.int8), np.array([[QUARTER]], np.uint16))
    words.codes[0, :6] = [-8, 7, 0, 1, -1, 3]
    payload = codec(1, 32).encode(words)
    assert payload.size == 258
    assert payload[:16].tobytes().hex(" ") == "f0 98 b7" + 13 * " 88"
    assert not payload[16:256].any()
    assert payload[256:].tobytes().hex(" ") == "00 34"
    assert codec(1, 32).decode(payload)[0, :6].tolist() == [-2.0, 1.75, 0.0, 0.25, -0.25, 0.75]


@pytest.mark.parametrize("name", ["w.rows.1x32", "w.rows.3x160"])
def test_words_and_values_have_the_expected_bits(name: str) -> None:
    with open_artifact(ARTIFACT) as artifact:
        record = next(record for record in artifact.directory.tensors if record.id == name)
        data = artifact.read_range(record.offset, record.num_bytes)
    payload = np.frombuffer(data, np.uint8)
    one = codec(*record.shape)
    words = one.decode_words(payload)
    assert words.codes.tolist() == ARRAYS[f"{name}|codes"].tolist()
    assert words.scales.tolist() == ARRAYS[f"{name}|scale_words"].tolist()
    assert one.decode(payload).tobytes() == ARRAYS[f"{name}|values_f32"].tobytes()
    assert one.encode(words).tobytes() == data
    one.verify(payload)


def slow_decode(payload: bytes, rows: int, columns: int) -> list[list[float]]:
    """One element at a time, straight from the text of the layout."""
    scale_at = -(-rows * columns // 2 // 256) * 256
    values = []
    for n in range(rows):
        line = []
        for k in range(columns):
            nibble = payload[(n * columns + k) // 2] >> (4 * (k % 2)) & 15
            at = scale_at + (n * (columns // 32) + k // 32) * 2
            line.append(float(np.frombuffer(payload, "<f2", 1, at)[0]) * (nibble - 8))
        values.append(line)
    return values


@given(matrices())
def test_words_and_values_survive(words: GroupedWords) -> None:
    one = codec_of_words(words)
    payload = one.encode(words)
    decoded = one.decode_words(payload)
    assert decoded.codes.dtype == np.int8
    assert decoded.codes.tolist() == words.codes.tolist()
    assert decoded.scales.dtype == np.uint16
    assert decoded.scales.tolist() == words.scales.tolist()
    values = one.decode(payload)
    assert values.dtype == np.float32
    assert values.tolist() == slow_decode(payload.tobytes(), *words.codes.shape)
    one.verify(payload)


@given(hnp.arrays(np.uint8, 64 * 2), hnp.arrays(np.uint16, 4, elements=st.integers(0, 0x7FFF)))
def test_any_bytes_are_decoded_or_refused(packed: np.ndarray, scales: np.ndarray) -> None:
    one = codec(4, 64 // 2 * 2)
    payload = np.zeros(one.geometry.num_bytes, np.uint8)
    payload[:128] = packed
    payload[256:264] = scales.view(np.uint8)
    payload[264:] = np.full(4, 0x3C01, np.uint16).view(np.uint8)
    stored = payload[256:].view(np.uint16).reshape(4, 2)
    zero_codes = (packed == 0x88).reshape(4, 2, 16).all(axis=2)
    legal = ((stored < 0x7C00) & ((stored != 0) | zero_codes)).all()
    if legal:
        assert one.decode(payload).tolist() == slow_decode(payload.tobytes(), 4, 64)
        assert one.encode(one.decode_words(payload)).tobytes() == payload.tobytes()
        return
    for read in (one.decode, one.decode_words, one.verify):
        with pytest.raises(ArtifactError) as raised:
            read(payload)
        assert raised.value.category == "codec"


@given(matrices(), st.data())
def test_ranges_and_blocks_are_cut_out_of_the_whole(
    words: GroupedWords, data: st.DataObject
) -> None:
    one = codec_of_words(words)
    payload = one.encode(words)
    whole = one.decode(payload)
    begin = data.draw(st.integers(0, whole.size))
    end = data.draw(st.integers(begin, whole.size))
    found = one.decode_range(payload, begin, end)
    assert found.tobytes() == whole.reshape(-1)[begin:end].tobytes()
    rows = sorted(data.draw(st.integers(0, whole.shape[0])) for _ in range(2))
    columns = sorted(data.draw(st.integers(0, whole.shape[1])) for _ in range(2))
    block = one.decode_block(payload, tuple(rows), tuple(columns))
    assert block.shape == (rows[1] - rows[0], columns[1] - columns[0])
    assert np.array_equal(block, whole[rows[0] : rows[1], columns[0] : columns[1]])


@given(matrices(), st.data())
def test_blocks_of_rows_and_padding_add_up_to_the_object(
    words: GroupedWords, data: st.DataObject
) -> None:
    one = codec_of_words(words)
    rows = one.rows
    cuts = data.draw(st.sets(st.integers(1, rows - 1))) if rows > 1 else set()
    payload = np.full(one.geometry.num_bytes, 0xEE, np.uint8)
    for begin, end in pairwise([0, *sorted(cuts), rows]):
        for piece in one.encode_rows(words.rows(begin, end), begin):
            payload[piece.offset : piece.offset + piece.data.size] = piece.data
            assert not piece.shared
    for offset, length in one.padding:
        assert set(payload[offset : offset + length]) == {0xEE}, "padding is written once"
        payload[offset : offset + length] = 0
    assert payload.tobytes() == one.encode(words).tobytes()


@given(matrices(), st.data())
def test_rows_can_be_cut_out_and_gathered(words: GroupedWords, data: st.DataObject) -> None:
    one = codec_of_words(words)
    payload = one.encode(words)
    index = st.integers(0, one.rows - 1)
    rows = data.draw(st.lists(index, min_size=1, max_size=12))
    gathered = GroupedWords(words.codes[rows], words.scales[rows])
    assert (
        one.gather_rows(payload, rows).tobytes()
        == codec_of_words(gathered).encode(gathered).tobytes()
    )
    begin = data.draw(index)
    end = data.draw(st.integers(begin + 1, one.rows))
    cut = words.rows(begin, end)
    assert one.row_slice(begin, end).codec.shape == cut.codes.shape
    assert (
        one.slice_rows(payload, begin, end).tobytes() == codec_of_words(cut).encode(cut).tobytes()
    )


def legal_words() -> GroupedWords:
    return GroupedWords(np.ones((3, 64), np.int8), np.full((3, 2), QUARTER, np.uint16))


@pytest.mark.parametrize("code", [8, -9, 127, -128])
def test_codes_of_more_than_four_bits_are_refused(code: int) -> None:
    words = legal_words()
    words.codes[2, 63] = code
    with pytest.raises(ArtifactError, match=rf"code at \[2, 63\].*-8 to 7, found {code}") as raised:
        codec(3, 64).encode(words)
    assert raised.value.category == "codec"
    with pytest.raises(ArtifactError, match=r"code at \[12, 63\]"):
        codec(20, 64).encode_rows(words, 10)


@pytest.mark.parametrize("word", [0x8000, 0x8001, 0x7C00, 0x7C01, 0xFC00, 0xFFFF])
def test_scales_outside_the_format_are_refused_both_ways(word: int) -> None:
    words = legal_words()
    payload = codec(3, 64).encode(words)
    words.scales[1, 1] = word
    with pytest.raises(ArtifactError, match=rf"scale word at \[1, 1\].*found {word:#06x}"):
        codec(3, 64).encode(words)
    payload[256 + 6 : 256 + 8] = np.array([word], np.uint16).view(np.uint8)
    for read in (codec(3, 64).decode, codec(3, 64).decode_words, codec(3, 64).verify):
        with pytest.raises(ArtifactError, match=rf"scale word at \[1, 1\].*found {word:#06x}"):
            read(payload)
    with pytest.raises(ArtifactError, match=r"scale word at \[1, 1\]"):
        codec(3, 64).decode_block(payload, (1, 2), (40, 50))
    others = codec(3, 64).decode_block(payload, (0, 3), (0, 32))
    assert others.tolist() == [[0.25] * 32] * 3, "other groups stay readable"
    assert codec(3, 64).decode_range(payload, 128, 192).tolist() == [0.25] * 64


def test_a_zero_scale_needs_zero_codes_both_ways() -> None:
    words = legal_words()
    words.scales[1, 1] = 0
    with pytest.raises(ArtifactError, match=r"zero scale.*row 1, columns from 32"):
        codec(3, 64).encode(words)
    words.codes[1, 32:] = 0
    payload = codec(3, 64).encode(words)
    assert codec(3, 64).decode(payload)[1, 32:].tolist() == [0] * 32
    payload[63] = 0x98
    with pytest.raises(ArtifactError, match=r"zero scale.*row 1, columns from 32"):
        codec(3, 64).decode(payload)
    with pytest.raises(ArtifactError, match=r"zero scale.*row 1, columns from 32"):
        codec(3, 64).decode_block(payload, (1, 2), (33, 34))


@pytest.mark.parametrize(
    ("codes", "scales"),
    [
        pytest.param(np.ones((3, 64), np.uint8), np.ones((3, 2), np.uint16), id="unsigned codes"),
        pytest.param(np.ones((3, 64), np.int8), np.ones((3, 2), np.float16), id="float scales"),
        pytest.param(np.ones((3, 64), np.int8), np.ones((3, 3), np.uint16), id="extra group"),
        pytest.param(np.ones((3, 65), np.int8), np.ones((3, 2), np.uint16), id="extra column"),
        pytest.param(np.ones((4, 64), np.int8), np.ones((4, 2), np.uint16), id="extra row"),
        pytest.param(np.ones(192, np.int8), np.ones((3, 2), np.uint16), id="flat"),
    ],
)
def test_words_that_do_not_fit_are_refused(codes: np.ndarray, scales: np.ndarray) -> None:
    with pytest.raises(ArtifactError) as raised:
        codec(3, 64).encode(GroupedWords(codes, scales))
    assert raised.value.category == "codec"


def test_words_of_any_memory_order_are_encoded_alike() -> None:
    random = np.random.default_rng(5)
    codes = random.integers(-8, 8, (6, 96)).astype(np.int8)
    scales = random.integers(1, 0x7C00, (6, 3)).astype(np.uint16)
    encoded = codec(6, 96).encode(GroupedWords(codes, scales))
    strided = GroupedWords(np.asfortranarray(codes), np.asfortranarray(scales))
    assert codec(6, 96).encode(strided).tobytes() == encoded.tobytes()


@pytest.mark.parametrize("shape", [(1, 16), (3, 150), (2, 33), (32,), (2, 2, 32)])
def test_rows_are_whole_groups(shape: tuple[int, ...]) -> None:
    with pytest.raises(ArtifactError) as raised:
        codec(*shape)
    assert raised.value.category == "encoding"


def test_padding_that_is_not_zero_is_found_but_does_not_change_values() -> None:
    payload = codec(3, 64).encode(legal_words())
    ((offset, length),) = codec(3, 64).padding
    assert (offset, length) == (96, 160)
    for position in (offset, offset + length - 1):
        spoiled = payload.copy()
        spoiled[position] = 1
        with pytest.raises(ArtifactError, match=f"padding is not zero at byte {position}"):
            codec(3, 64).verify(spoiled)
        assert codec(3, 64).decode(spoiled).tobytes() == codec(3, 64).decode(payload).tobytes()


def test_a_payload_of_another_length_is_refused() -> None:
    payload = codec(3, 64).encode(legal_words())
    for method in ("decode", "decode_words", "verify"):
        with pytest.raises(ArtifactError, match="wrong length"):
            getattr(codec(3, 64), method)(payload[:-1])
