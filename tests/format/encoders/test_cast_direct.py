from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ninfer_format import ArtifactError, cast_direct, codec_for

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_side=4), elements=FINITE))
def test_bf16_rounds_to_nearest_and_ties_to_even(values: np.ndarray) -> None:
    bits = values.view(np.uint32).astype(np.uint64)
    expected = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    if np.any((expected & 0x7FFF) == 0x7F80):
        with pytest.raises(ArtifactError, match="beyond the range of bf16"):
            cast_direct(values, "bf16")
        return
    words = cast_direct(values, "bf16")
    assert words.shape == values.shape
    assert words.dtype == np.uint16
    assert words.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (0x3F808000, 0x3F80),  # a tie goes to the even word
        (0x3F818000, 0x3F82),
        (0x3F808001, 0x3F81),
        (0x80000000, 0x8000),
        (0x00000001, 0x0000),
        (0x00008001, 0x0001),
        (0x7F7F7FFF, 0x7F7F),
    ],
)
def test_bf16_of_known_words(word: int, expected: int) -> None:
    value = np.array([word], np.uint32).view(np.float32)
    assert cast_direct(value, "bf16").tolist() == [expected]


@given(hnp.arrays(np.uint16, st.integers(1, 30)))
def test_bf16_sources_keep_their_words(words: np.ndarray) -> None:
    values = words.view(ml_dtypes.bfloat16)
    with np.errstate(invalid="ignore"):  # of signalling NaNs
        finite = np.isfinite(values).all()
    if finite:
        assert cast_direct(values, "bf16").tolist() == words.tolist()
        widened = codec_for("bf16", "contiguous_le_v1", words.shape).decode(words.view(np.uint8))
        assert cast_direct(values, "fp32").tolist() == widened.view(np.uint32).tolist()


@given(hnp.arrays(np.float32, st.integers(1, 30), elements=FINITE))
def test_fp32_keeps_its_words(values: np.ndarray) -> None:
    assert cast_direct(values, "fp32").tolist() == values.view(np.uint32).tolist()


def test_binary64_is_rounded_to_binary32_before_bf16() -> None:
    # Above a bf16 tie by less than binary32 can tell: the first rounding makes it the tie.
    value = np.array([1 + 2.0**-8 + 2.0**-40])
    assert cast_direct(value, "bf16").tolist() == [0x3F80]
    assert cast_direct(value, "fp32").view(np.float32).tolist() == [1 + 2.0**-8]


def test_integers_of_any_width_are_accepted() -> None:
    values = np.array([-(2**31), -1, 0, 7, 2**31 - 1])
    assert cast_direct(values, "int32").tolist() == values.tolist()
    assert cast_direct(np.array([0, 255], np.uint8), "int32").tolist() == [0, 255]
    assert cast_direct(np.array([3, -2], np.int64), "fp32").view(np.float32).tolist() == [3.0, -2.0]


def test_fractions_are_cut_off_toward_zero() -> None:
    values = np.array([1.9, -1.9, 0.5, -0.5, 2**31 - 1.0])
    assert cast_direct(values, "int32").tolist() == [1, -1, 0, 0, 2**31 - 1]


@pytest.mark.parametrize(
    "values",
    [
        np.array([0, 2**31]),
        np.array([0, -(2**31) - 1]),
        np.array([0, 2**64 - 1], np.uint64),
        np.array([0, 2147483648.0], np.float32),
        np.array([0, 2147483647.5]),
        np.array([0, -3e9]),
    ],
    ids=str,
)
def test_values_beyond_int32_are_refused(values: np.ndarray) -> None:
    with pytest.raises(ArtifactError, match=r"at \[1\] is beyond int32") as raised:
        cast_direct(values, "int32")
    assert raised.value.category == "codec"


@pytest.mark.parametrize("format", ["bf16", "fp32", "int32"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_non_finite_sources_are_refused(format: str, value: float, dtype: Any) -> None:
    values = np.ones((3, 4), dtype)
    values[2, 1] = value
    with pytest.raises(ArtifactError, match=r"at \[2, 1\] is not finite") as raised:
        cast_direct(values, format)
    assert raised.value.category == "codec"


@pytest.mark.parametrize(("format", "value"), [("fp32", 1e39), ("bf16", 1e39), ("bf16", 3.4e38)])
def test_values_that_would_become_infinite_are_refused(format: str, value: float) -> None:
    with pytest.raises(ArtifactError, match=r"at \[0\] is beyond the range"):
        cast_direct(np.array([value]), format)


def test_other_sources_and_targets_are_refused() -> None:
    with pytest.raises(ArtifactError, match="not numeric") as raised:
        cast_direct(np.array([1j]), "fp32")
    assert raised.value.category == "codec"
    with pytest.raises(ArtifactError, match="not a direct format") as raised:
        cast_direct(np.ones(3), "q4_g64_fp16")
    assert raised.value.category == "encoding"


def test_strided_sources_are_taken_in_c_order() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    words = cast_direct(values.T, "fp32")
    assert words.flags.c_contiguous
    assert words.view(np.float32).tolist() == values.T.tolist()
