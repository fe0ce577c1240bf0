from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.cuda.row_schedule import RowSchedule, row_schedule
from ninfer_runtime.cuda.rows import RowViews, is_aligned, is_contiguous, row_views
from ninfer_runtime.device import DType, Tensor, get_device
from ninfer_runtime.errors import UnsupportedOpError


def aligned(*shape, dtype=np.uint16):
    """An array that begins at a multiple of 64 bytes."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    whole = np.zeros(size + 64, np.uint8)
    begin = -whole.ctypes.data % 64
    return whole[begin : begin + size].view(dtype).reshape(shape)


def bf16(array):
    return Tensor(array, DType.BF16, get_device("cpu"))


def elements(array, views, index):
    """The elements of a tensor that a kernel would visit, row by row."""
    outer, inner = views.strides[index]
    starts = [
        (row // views.inner) * outer + (row % views.inner) * inner for row in range(views.rows)
    ]
    flat = np.lib.stride_tricks.as_strided(array, (1 << 14,), (array.itemsize,))
    return np.array([flat[start : start + views.columns] for start in starts])


def test_contiguous_tensors_are_plain_rows():
    x = bf16(aligned(2, 3, 16))
    assert row_views("op", x) == RowViews(6, 6, 16, ((0, 16),), 8)


def test_heads_of_wider_rows_need_two_levels():
    whole = aligned(5, 64)
    whole[...] = np.arange(whole.size).reshape(whole.shape)
    heads = whole[:, 16:48].reshape(5, 2, 16)
    own = aligned(5, 2, 16)
    views = row_views("op", bf16(heads), bf16(own))
    assert (views.rows, views.inner, views.pack) == (10, 2, 8)
    assert views.strides == ((64, 16), (32, 16))
    np.testing.assert_array_equal(elements(heads, views, 0), heads.reshape(10, 16))


def test_levels_are_joined_only_where_all_tensors_allow_it():
    joined = aligned(4, 3, 16)[:, :, :8]
    assert row_views("op", bf16(joined)).strides == ((0, 16),)
    apart = aligned(4, 5, 16)[:, :3, :8]
    assert row_views("op", bf16(joined), bf16(apart)).strides == ((48, 16), (80, 16))


def test_three_levels_and_strided_elements_are_refused():
    with pytest.raises(UnsupportedOpError, match="strides"):
        row_views("op", bf16(aligned(4, 4, 4, 16)[:3, :3, :3]))
    with pytest.raises(UnsupportedOpError, match="strides"):
        row_views("op", bf16(aligned(4, 16)[:, ::2]))


def test_an_axis_of_one_element_does_not_count():
    x = bf16(aligned(3, 32)[:, None, :16])
    assert row_views("op", x).strides == ((0, 32),)
    assert row_views("op", bf16(aligned(16))).rows == 1


@pytest.mark.parametrize(
    "array",
    [aligned(4, 20), aligned(4, 32)[:, 4:12], aligned(4, 36)[:, :16]],
    ids=["width", "address", "stride"],
)
def test_what_is_not_aligned_is_accessed_one_by_one(array):
    assert row_views("op", bf16(array)).pack == 1
    assert row_views("op", bf16(aligned(*array.shape)), bf16(array)).pack == 1


def test_contiguity_and_alignment_of_heads():
    whole = aligned(2, 3, 64)
    assert is_contiguous(bf16(whole))
    assert is_contiguous(bf16(whole[:1, :, :]))
    assert not is_contiguous(bf16(whole[:, :2]))
    assert is_aligned(bf16(whole[:, :, 16:32]))
    assert not is_aligned(bf16(whole[:, :, 4:32]))
    assert not is_aligned(bf16(whole[:, :, ::2]))
    assert is_aligned(bf16(whole[:, :, 4:32]), 8)
    assert not is_aligned(bf16(whole[:, :, 2:32]), 8)


@pytest.mark.parametrize(
    ("columns", "pack", "expected"),
    [
        (128, 8, RowSchedule(8, 1, 32)),
        (1024, 8, RowSchedule(8, 4, 32)),
        (5120, 8, RowSchedule(8, 3, 256)),
        (8192, 8, RowSchedule(8, 4, 256)),
        (32768, 8, RowSchedule(8, 4, 1024)),
        (257, 1, RowSchedule(1, 9, 32)),
        (32776, 8, None),
        (5120, 1, RowSchedule(1, 20, 256)),
        (32769, 1, None),
    ],
)
def test_a_row_takes_the_fewest_threads_that_hold_it(columns, pack, expected):
    found = row_schedule(columns, pack, (32, 128, 256, 512, 1024))
    assert found == expected
    if found is not None:
        assert found.threads * found.packs * found.pack >= columns
        assert found.block_threads <= 1024
