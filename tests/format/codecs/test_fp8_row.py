from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_format import ArtifactError, Fp8RowWords, codec_for
from ninfer_format.codecs.small_floats import E4M3FN_VALUES

ONE = 0x3F80  # 1.0 as bf16
CODE_ONE = 0x38  # 1.0 as E4M3FN


def codec(shape: tuple[int, ...]) -> Any:
    return codec_for("fp8_e4m3fn_row_bf16", "row_scale_v1", shape)


def ones(rows: int, columns: int) -> Fp8RowWords:
    return Fp8RowWords(np.full((rows, columns), CODE_ONE, np.uint8), np.full(rows, ONE, np.uint16))


def test_worked_bytes() -> None:
    """The example of the layouts specification, section 5."""
    codes = np.arange(6, dtype=np.uint8).reshape(2, 3)
    payload = codec((2, 3)).encode(Fp8RowWords(codes, np.array([ONE, 0xABC], np.uint16)))
    assert payload.tobytes() == bytes(range(6)) + bytes(250) + b"\x80\x3f\xbc\x0a"
    assert codec((2, 3)).padding == [(6, 250)]
    values = codec((2, 3)).decode(payload)
    assert values[0].tolist() == [0, 2.0**-9, 2.0**-8]


@given(st.integers(1, 5), st.integers(1, 300), st.integers(0, 2**32))
def test_values_are_products_in_binary32(rows: int, columns: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    codes = random.integers(0, 256, (rows, columns)).astype(np.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    scales = random.integers(1, 0x7F80, rows).astype(np.uint16)
    payload = codec((rows, columns)).encode(Fp8RowWords(codes, scales))
    # The product of two so short numbers is exact in binary64.
    wide = (scales.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    with np.errstate(over="ignore"):
        wanted = (E4M3FN_VALUES[codes] * wide[:, np.newaxis]).astype(np.float32)
    assert codec((rows, columns)).decode(payload).tobytes() == wanted.tobytes()


def test_products_may_overflow_and_underflow() -> None:
    codes = np.array([[0x7E, 0xFE], [0x01, 0x81]], np.uint8)
    words = Fp8RowWords(codes, np.array([0x7F7F, 0x0001], np.uint16))
    values = codec((2, 2)).decode(codec((2, 2)).encode(words))
    assert values.tolist() == [[np.inf, -np.inf], [2.0**-142, -(2.0**-142)]]


@pytest.mark.parametrize("word", [0x7F, 0xFF])
def test_codes_that_are_not_numbers_are_refused(word: int) -> None:
    words = ones(3, 40)
    payload = codec((3, 40)).encode(words)
    words.codes[2, 33] = payload[2 * 40 + 33] = word
    message = rf"illegal fp8_e4m3fn_row_bf16 code at \[2, 33\].*found {word:#04x}"
    for call in (
        lambda: codec((3, 40)).encode(words),
        lambda: codec((3, 40)).decode_words(payload),
        lambda: codec((3, 40)).decode(payload),
        lambda: codec((3, 40)).decode_range(payload, 112, 115),
        lambda: codec((3, 40)).decode_block(payload, (1, 3), (30, 35)),
        lambda: codec((3, 40)).verify(payload),
    ):
        with pytest.raises(ArtifactError, match=message) as raised:
            call()
        assert raised.value.category == "codec"
    with pytest.raises(ArtifactError, match=r"code at \[12, 33\]"):
        codec((20, 40)).encode_rows(words, 10)


@pytest.mark.parametrize("word", [0x7F80, 0x7F81, 0x8000, 0xBF80, 0xFFFF])
def test_scales_outside_the_format_are_refused(word: int) -> None:
    words = ones(3, 40)
    payload = codec((3, 40)).encode(words)
    words.scales[1] = word
    payload[258:260] = np.array([word], np.uint16).view(np.uint8)
    message = rf"scale word at \[1\].*found {word:#06x}"
    for call in (
        lambda: codec((3, 40)).validate(words),
        lambda: codec((3, 40)).decode(payload),
        lambda: codec((3, 40)).decode_block(payload, (1, 2), (0, 1)),
        lambda: codec((3, 40)).verify(payload),
    ):
        with pytest.raises(ArtifactError, match=message):
            call()


def test_a_zero_scale_needs_zero_codes() -> None:
    words = ones(3, 40)
    words.scales[1] = 0
    with pytest.raises(ArtifactError, match=r"code at \[1, 0\].*under a zero scale, found 0x38"):
        codec((3, 40)).validate(words)
    words.codes[1] = 0x80
    payload = codec((3, 40)).encode(words)
    values = codec((3, 40)).decode(payload)
    assert values[1].tolist() == [0] * 40
    assert np.signbit(values[1]).all()
    payload[40 + 7] = 0x01
    with pytest.raises(ArtifactError, match=r"code at \[1, 7\].*under a zero scale, found 0x01"):
        codec((3, 40)).decode(payload)


def test_only_the_words_that_are_decoded_are_judged() -> None:
    payload = codec((3, 40)).encode(ones(3, 40))
    payload[40 + 7] = 0x7F
    assert codec((3, 40)).decode_range(payload, 0, 40).tolist() == [1] * 40
    assert codec((3, 40)).decode_range(payload, 40, 47).tolist() == [1] * 7
    assert codec((3, 40)).decode_block(payload, (0, 3), (8, 40)).tolist() == [[1] * 32] * 3
    assert codec((3, 40)).decode_range(payload, 47, 47).tolist() == []
    with pytest.raises(ArtifactError, match=r"code at \[1, 7\]"):
        codec((3, 40)).decode_range(payload, 47, 48)


@pytest.mark.parametrize(
    ("codes", "scales"),
    [
        pytest.param(np.zeros((3, 7), np.int8), np.zeros(3, np.uint16), id="signed codes"),
        pytest.param(np.zeros((3, 7), np.uint8), np.zeros((3, 1), np.uint16), id="scale column"),
        pytest.param(np.zeros((3, 7), np.uint8), np.zeros(3, np.uint32), id="wide scales"),
        pytest.param(np.zeros((3, 8), np.uint8), np.zeros(3, np.uint16), id="extra column"),
        pytest.param(np.zeros((4, 7), np.uint8), np.zeros(4, np.uint16), id="extra row"),
        pytest.param(np.zeros(21, np.uint8), np.zeros(3, np.uint16), id="flat"),
        pytest.param(np.uint8(0), np.zeros(3, np.uint16), id="scalar"),
    ],
)
def test_words_that_do_not_fit_are_refused(codes: Any, scales: np.ndarray) -> None:
    for call in (codec((3, 7)).encode, lambda words: codec((3, 7)).encode_rows(words, 0)):
        with pytest.raises(ArtifactError) as raised:
            call(Fp8RowWords(codes, scales))
        assert raised.value.category == "codec"
