"""Rows of encoded matrices: any selection has the words and the values of those rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_format import (
    Exl3Words,
    Fp8RowWords,
    GroupedWords,
    Nvfp4Words,
    codec_for,
    fp8_row_maxabs,
    grouped_absmax,
    nvfp4_absmax,
)
from ninfer_quant.errors import ConversionError
from ninfer_quant.sources.decoded import DecodedSource
from ninfer_quant.sources.encoded import EncodedSource
from ninfer_quant.sources.logical import reshape, select_rows
from ninfer_quant.sources.words import MatrixWords, joined_rows, word_rows, word_values

N, K = 256, 128
LAYOUTS = {
    "q4_g64_fp16": "row_split_k128_v1",
    "q8_g32_fp16": "row_split_k128_v1",
    "fp8_e4m3fn_row_bf16": "row_scale_v1",
    "nvfp4": "block_scale_k16_m128x4_v1",
    "exl3_mul1": "trellis_t16_v1",
}


def make_words(format_: str) -> MatrixWords:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((N, K)).astype(np.float32)
    if format_ == "exl3_mul1":
        return Exl3Words(
            rng.integers(0, 256, (N // 16, K // 16, 16 * 7), np.uint8),
            rng.standard_normal((1, K)).astype(np.float32).view(np.uint32),
            rng.standard_normal(N).astype(np.float32).view(np.uint32),
        )
    if format_ == "nvfp4":
        return nvfp4_absmax(values)
    if format_ == "fp8_e4m3fn_row_bf16":
        return fp8_row_maxabs(values)
    return grouped_absmax(values, format_)


class InMemory(EncodedSource):
    def __init__(self, format_: str) -> None:
        is_trellis = format_ == "exl3_mul1"
        super().__init__(
            format_,
            (N, K),
            "memory",
            bitrate_half_bits=7 if is_trellis else None,
            row_block=16 if is_trellis else 1,
        )
        self.words = make_words(format_)

    def _read(self, begin: int, end: int) -> MatrixWords:
        return word_rows(self.words, begin, end)


@pytest.fixture(params=LAYOUTS, scope="module")
def source(request: pytest.FixtureRequest) -> DecodedSource:
    encoded = InMemory(request.param)
    return DecodedSource(encoded, ["memory"], None)


def test_values_are_what_a_reader_of_an_artifact_decodes(source: DecodedSource):
    encoded = source.encoded
    assert isinstance(encoded, InMemory)
    codec = codec_for(
        encoded.format,
        LAYOUTS[encoded.format],
        (N, K),
        bitrate_half_bits=encoded.bitrate_half_bits,
    )
    expected = codec.decode(codec.encode(encoded.words))
    np.testing.assert_array_equal(word_values(encoded.format, encoded.words), expected)
    np.testing.assert_array_equal(source.read_values(0, N * K), expected.reshape(-1))


@given(data=st.data())
def test_any_range_of_values_can_be_read(source: DecodedSource, data: st.DataObject):
    begin = data.draw(st.integers(0, N * K))
    end = data.draw(st.integers(begin, N * K))
    whole = source.read_values(0, N * K)
    np.testing.assert_array_equal(source.read_values(begin, end), whole[begin:end])


@given(data=st.data())
def test_selected_rows_have_their_words_and_values(source: DecodedSource, data: st.DataObject):
    block = source.encoded.row_block
    row = st.integers(0, N // block - 1)
    firsts = data.draw(st.lists(row, min_size=1, max_size=4))
    ranges = [
        (first * block, block * data.draw(st.integers(first + 1, N // block))) for first in firsts
    ]
    chosen = select_rows(source, ranges)
    rows = np.concatenate([np.arange(*span) for span in ranges])
    whole = source.read_values(0, N * K).reshape(N, K)
    found = chosen.read_values(0, chosen.num_elements).reshape(-1, K)
    np.testing.assert_array_equal(found, whole[rows])
    assert chosen.encoded is not None
    words = chosen.encoded.read_rows(0, rows.size)
    if not isinstance(words, Exl3Words):
        np.testing.assert_array_equal(word_values(source.encoded.format, words), whole[rows])
    half = rows.size // 2 // block * block
    if half:
        again = joined_rows(
            [chosen.encoded.read_rows(0, half), chosen.encoded.read_rows(half, rows.size)]
        )
        for plane in vars_of(words):
            np.testing.assert_array_equal(getattr(words, plane), getattr(again, plane))


def vars_of(words: MatrixWords) -> tuple[str, ...]:
    return tuple(words.__dataclass_fields__)


def test_trellis_rows_that_are_no_whole_tiles_are_values_only():
    source = DecodedSource(InMemory("exl3_mul1"), ["memory"], None)
    chosen = select_rows(source, [(3, 20)])
    assert chosen.encoded is None
    whole = source.read_values(0, N * K).reshape(N, K)
    np.testing.assert_array_equal(chosen.read_values(0, 17 * K), whole[3:20].reshape(-1))
    with pytest.raises(ValueError, match="multiples of 16"):
        source.encoded.read_rows(3, 16)


def test_a_reshaped_matrix_has_no_words(source: DecodedSource):
    assert reshape(source, (N, K)).encoded is source.encoded
    assert reshape(source, (N // 2, 2 * K)).encoded is None


@pytest.mark.parametrize(
    "make",
    [
        lambda divisor: Nvfp4Words(
            np.zeros((1, 16), np.uint8),
            np.zeros((1, 1), np.uint8),
            np.array([divisor], np.uint32),
        ),
        lambda multiplier: Exl3Words(
            np.zeros((1, 1, 16), np.uint8),
            np.array([[multiplier]], np.uint32),
            np.zeros(16, np.uint32),
        ),
    ],
)
def test_rows_that_differ_in_what_they_share_cannot_be_joined(
    make: Callable[[int], MatrixWords],
):
    assert joined_rows([make(1), make(1)])
    with pytest.raises(ConversionError, match="cannot be one matrix"):
        joined_rows([make(1), make(2)])


def test_rows_of_the_other_formats_are_joined():
    for words in (
        GroupedWords(np.zeros((1, 64), np.int8), np.zeros((1, 1), np.uint16)),
        Fp8RowWords(np.zeros((1, 64), np.uint8), np.zeros(1, np.uint16)),
    ):
        joined = joined_rows([words, words])
        assert isinstance(joined, type(words))
        assert joined.codes.shape == (2, 64)
