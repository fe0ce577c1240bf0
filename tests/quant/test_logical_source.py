from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_quant.errors import ConversionError
from ninfer_quant.sources.logical import (
    TRANSPOSE_LIMIT_ELEMENTS,
    ArraySource,
    LogicalSource,
    reshape,
    select_rows,
    transpose,
)

ROWS, WIDTH = 12, 5
ARRAY = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)

row_ranges = st.lists(
    st.tuples(st.integers(0, ROWS - 1), st.integers(1, ROWS)).map(
        lambda pair: (pair[0], max(pair[0] + 1, pair[1]))
    ),
    min_size=1,
    max_size=5,
)


def read_in_pieces(source: LogicalSource, cuts: list[int]) -> np.ndarray:
    edges = sorted({0, source.num_elements, *(cut % (source.num_elements + 1) for cut in cuts)})
    pieces = [source.read_values(begin, end) for begin, end in pairwise(edges)]
    return np.concatenate(pieces)


@given(row_ranges, st.lists(st.integers(0, 1000), max_size=4))
def test_selected_rows_equal_numpy_for_any_reading_pattern(
    ranges: list[tuple[int, int]], cuts: list[int]
):
    expected = np.concatenate([ARRAY[begin:end] for begin, end in ranges])
    source = select_rows(ArraySource(ARRAY), ranges)
    assert source.shape == expected.shape
    np.testing.assert_array_equal(read_in_pieces(source, cuts), expected.reshape(-1))


@given(row_ranges, st.lists(st.integers(0, 1000), max_size=4))
def test_combinators_compose(ranges: list[tuple[int, int]], cuts: list[int]):
    picked = np.concatenate([ARRAY[begin:end] for begin, end in ranges])
    expected = picked.reshape(len(picked), 1, WIDTH).transpose(2, 0, 1)
    source = select_rows(ArraySource(ARRAY), ranges)
    source = transpose(reshape(source, (len(picked), 1, WIDTH)), (2, 0, 1))
    assert source.shape == expected.shape
    np.testing.assert_array_equal(read_in_pieces(source, cuts), expected.reshape(-1))


def test_all_rows_in_order_is_the_source_itself():
    source = ArraySource(ARRAY)
    assert select_rows(source, [(0, 4), (4, ROWS)]) is source


@pytest.mark.parametrize("ranges", [[], [(0, 0)], [(3, 2)], [(-1, 2)], [(0, ROWS + 1)]])
def test_rows_outside_the_source_are_refused(ranges: list[tuple[int, int]]):
    with pytest.raises(ValueError, match="rows"):
        select_rows(ArraySource(ARRAY), ranges)


def test_a_scalar_has_no_rows():
    with pytest.raises(ValueError, match="rows"):
        select_rows(ArraySource(np.array(1.0)), [(0, 1)])


@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (3, 2), (0, ROWS * WIDTH + 1)])
def test_elements_outside_the_source_are_refused(begin: int, end: int):
    with pytest.raises(ValueError, match="range"):
        ArraySource(ARRAY).read_values(begin, end)


def test_reshaping_keeps_the_number_of_elements():
    assert reshape(ArraySource(ARRAY), (5, 12)).shape == (5, 12)
    with pytest.raises(ValueError, match="reshaped"):
        reshape(ArraySource(ARRAY), (5, 13))


def test_axes_must_be_a_permutation():
    with pytest.raises(ValueError, match="permute"):
        transpose(ArraySource(ARRAY), (0, 0))


def test_large_tensors_are_not_transposed_in_memory():
    # Zero strides: the array claims more elements than it has memory for.
    large = np.broadcast_to(np.float32(0), (2, TRANSPOSE_LIMIT_ELEMENTS))
    with pytest.raises(ConversionError, match="limited"):
        transpose(select_rows(_Shape(large.shape), [(0, 2)]), (1, 0))


class _Shape(LogicalSource):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape, "shape only")

    def _read(self, begin: int, end: int) -> np.ndarray:
        raise AssertionError("must not be read")


def test_only_what_is_asked_for_is_read():
    reads: list[tuple[int, int]] = []

    class Recording(ArraySource):
        def _read(self, begin: int, end: int) -> np.ndarray:
            reads.append((begin, end))
            return super()._read(begin, end)

    source = select_rows(Recording(ARRAY), [(0, 2), (6, 8)])
    source.read_values(WIDTH, 3 * WIDTH)
    assert reads == [(WIDTH, 2 * WIDTH), (6 * WIDTH, 7 * WIDTH)]
