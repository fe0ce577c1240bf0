from __future__ import annotations

import ml_dtypes
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ninfer_quant.encoders.small_floats import (
    E4M3_SCALES,
    e2m1_codes,
    e2m1_codes_ties_down,
    e4m3_words,
    nearest_e2m1,
)

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
MIDPOINTS = (E2M1[1:] + E2M1[:-1]) / 2


def neighbours(values: np.ndarray) -> np.ndarray:
    """Values with the binary32 numbers just below and above."""
    below, above = (np.nextafter(values, np.float32(end)) for end in (0, 1e9))
    return np.concatenate([below, values, above]).astype(np.float32)


def test_e2m1_rounds_to_nearest_with_ties_to_the_even_code():
    values = neighbours(np.concatenate([E2M1, MIDPOINTS, [7, 100, 1e6]]).astype(np.float32))
    expected = np.minimum(values, 6).astype(ml_dtypes.float4_e2m1fn)
    nearest = nearest_e2m1(np, values)
    np.testing.assert_array_equal(nearest, expected.astype(np.float32))
    codes = e2m1_codes(np, nearest, np.zeros(values.shape, bool))
    np.testing.assert_array_equal(codes, expected.view(np.uint8))


def test_a_negative_value_that_becomes_zero_has_no_sign():
    values = np.array([-0.0, -0.2, -0.25, -0.3, -6], np.float32)
    codes = e2m1_codes(np, nearest_e2m1(np, np.abs(values)), values < 0)
    assert codes.tolist() == [0, 0, 0, 9, 15]
    assert e2m1_codes_ties_down(np, values).tolist() == [0, 0, 0, 9, 15]


def test_ties_down_go_to_the_smaller_magnitude():
    codes = e2m1_codes_ties_down(np, np.concatenate([MIDPOINTS, -MIDPOINTS]))
    assert codes.tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 9, 10, 11, 12, 13, 14]


def test_e4m3_at_every_word_and_between():
    scales = E4M3_SCALES
    values = neighbours(np.concatenate([scales, (scales[1:] + scales[:-1]) / 2]))
    values = np.minimum(np.abs(values), np.float32(448))
    expected = values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(e4m3_words(np, values), expected)


@given(arrays(np.float32, 50, elements=st.floats(0, 448, width=32)))
def test_e4m3_of_any_number(values: np.ndarray):
    expected = values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(e4m3_words(np, values), expected)
