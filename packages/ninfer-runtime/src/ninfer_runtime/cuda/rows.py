"""How kernels see the rows of tensors: where they begin and how many elements one access takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError

ELEMENT_TYPES = {DType.FP32: "float", DType.BF16: "ninfer::bf16"}
"""Names of the element types in kernel instances."""

PACK = 8
"""Elements of a full access: 16 bytes of bf16."""

ACCESS_BYTES = 16


@dataclass(frozen=True, slots=True)
class RowViews:
    """Tensors of one shape as rows of contiguous elements.

    Row r is row ``r % inner`` of group ``r // inner``.

    Attributes:
        rows: Number of rows.
        inner: Rows of a group.
        columns: Elements of a row.
        strides: For each tensor the distance of groups and that of rows in a group, in elements.
        pack: Elements that one access may take: `PACK`, or 1.
    """

    rows: int
    inner: int
    columns: int
    strides: tuple[tuple[int, int], ...]
    pack: int


def row_views(op: str, *tensors: Tensor) -> RowViews:
    """Find one description of the rows of tensors that have the same shape.

    Args:
        op: Name of the op, for errors.
        tensors: Of the same shape, with at least one axis.

    Raises:
        UnsupportedOpError: Elements of a row are not contiguous, or no two levels of strides
            describe the rows.
    """
    shape = tensors[0].shape
    strides = [element_strides(tensor) for tensor in tensors]
    columns = shape[-1]
    levels = _merged([axis for axis in range(len(shape) - 1) if shape[axis] != 1], shape, strides)
    contiguous = columns == 1 or all(each[-1] == 1 for each in strides)
    if not contiguous or len(levels) > 2:
        raise UnsupportedOpError(op, tensors[0].device.kind, detail=f"strides {strides}")
    (_, outer), (inner, innermost) = [(1, (0,) * len(tensors))] * (2 - len(levels)) + levels
    found = tuple(zip(outer, innermost, strict=True))
    aligned = columns % PACK == 0 and all(
        _starts_aligned(tensor, each, ACCESS_BYTES)
        for tensor, each in zip(tensors, found, strict=True)
    )
    return RowViews(prod(shape[:-1]), inner, columns, found, PACK if aligned else 1)


def _merged(
    axes: list[int], shape: tuple[int, ...], strides: list[list[int]]
) -> list[tuple[int, tuple[int, ...]]]:
    """Sizes and strides of the axes, neighbours joined where they are one in every tensor."""
    levels: list[tuple[int, tuple[int, ...]]] = []
    for axis in reversed(axes):
        here = tuple(each[axis] for each in strides)
        if levels:
            size, below = levels[0]
            if here == tuple(size * stride for stride in below):
                levels[0] = (size * shape[axis], below)
                continue
        levels.insert(0, (shape[axis], here))
    return levels


def element_strides(tensor: Tensor) -> list[int]:
    """The distance of neighbours along each axis, in elements."""
    size = tensor.array.itemsize
    return [stride // size for stride in tensor.array.strides]


def is_aligned(tensor: Tensor, access_bytes: int = ACCESS_BYTES) -> bool:
    """Whether the last axis is contiguous and begins at a multiple of `access_bytes` everywhere."""
    *strides, last = element_strides(tensor)
    return last == 1 and _starts_aligned(tensor, strides, access_bytes)


def _starts_aligned(tensor: Tensor, strides: Iterable[int], access_bytes: int) -> bool:
    size = tensor.array.itemsize
    return address(tensor) % access_bytes == 0 and all(
        stride * size % access_bytes == 0 for stride in strides
    )


def address(tensor: Tensor) -> int:
    """The address of the first element, on the device or (for tests of this module) on the host."""
    try:
        return int(tensor.array.data.ptr)
    except AttributeError:
        return int(tensor.array.ctypes.data)


def is_contiguous(tensor: Tensor) -> bool:
    """Whether the elements lie together in the order of the axes."""
    return bool(tensor.array.flags.c_contiguous)
