"""Statistics in pieces against those of the whole array."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ninfer_format.inspect.statistics import BINS, describe


def in_pieces(values: np.ndarray, size: int) -> Callable[[], Iterator[Any]]:
    return lambda: iter([values[i : i + size] for i in range(0, values.size, size)])


ANY = arrays(
    np.float32,
    st.integers(1, 60),
    elements=st.one_of(
        st.floats(width=32, allow_nan=True, allow_infinity=True), st.sampled_from([0.0, -0.0])
    ),
)


@given(values=ANY, size=st.integers(1, 61))
def test_pieces_give_what_numpy_gives_for_the_whole(values: np.ndarray, size: int) -> None:
    found = describe(in_pieces(values, size))
    finite = values[np.isfinite(values)].astype(np.float64)
    assert found.count == values.size
    assert found.non_finite == values.size - finite.size
    if not finite.size:
        assert (found.minimum, found.mean, found.std, found.histogram) == (None, None, None, ())
        return
    assert found.zeros == int((finite == 0).sum())
    assert (found.minimum, found.maximum) == (finite.min(), finite.max())
    scale = float(np.abs(finite).max())
    assert found.mean == pytest.approx(finite.mean(), abs=1e-12 * scale)
    assert found.std == pytest.approx(finite.std(), rel=1e-9, abs=1e-9 * scale)
    assert sum(found.histogram) == finite.size


def test_the_histogram_has_equal_steps() -> None:
    rng = np.random.default_rng(5)
    values = rng.standard_normal(10_000)
    found = describe(in_pieces(values, 999))
    expected, _ = np.histogram(values, BINS, (values.min(), values.max()))
    assert list(found.histogram) == expected.tolist()


def test_one_value_is_all_in_one_step() -> None:
    found = describe(in_pieces(np.full(7, 2.5), 3))
    assert found.histogram == (7, *[0] * (BINS - 1))
    assert (found.mean, found.std) == (2.5, 0.0)


@pytest.mark.parametrize(
    "values",
    [
        np.array([0, 1, 255], np.uint8),
        np.array([-5, 2**31 - 1], np.int32),
        np.array([True, False]),
        np.array([1.5, -2.0], ml_dtypes.bfloat16),
        np.array([1.5, 448.0], ml_dtypes.float8_e4m3fn),
    ],
    ids=lambda values: values.dtype.name,
)
def test_other_types(values: np.ndarray) -> None:
    found = describe(in_pieces(values, 1))
    wide = values.astype(np.float64)
    assert (found.minimum, found.maximum) == (wide.min(), wide.max())
    assert found.mean == wide.mean()


def test_a_range_beyond_numbers_has_no_histogram() -> None:
    found = describe(in_pieces(np.array([-1.7e308, 1.7e308, 0.0]), 2))
    assert (found.minimum, found.maximum) == (-1.7e308, 1.7e308)
    assert found.histogram == ()
    assert found.std is None


def test_a_tiny_range_has_a_histogram() -> None:
    found = describe(in_pieces(np.array([0.0, 5e-324]), 2))
    assert found.histogram == (1, *[0] * (BINS - 2), 1)


def test_no_values() -> None:
    found = describe(in_pieces(np.empty(0), 1))
    assert (found.count, found.zero_fraction) == (0, 0.0)
