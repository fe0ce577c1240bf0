"""The thin holder of an array that ops pass around."""

from __future__ import annotations

from types import EllipsisType
from typing import Any

from ninfer_runtime.device.base import Device
from ninfer_runtime.device.dtypes import DType


class Tensor:
    """An array on a device together with the type of its elements.

    Args:
        array: Array of the device's module, of the storage type of `dtype`; it may be strided.
        dtype: Type of the elements.
        device: Where the array lies.
    """

    __slots__ = ("array", "device", "dtype")

    def __init__(self, array: Any, dtype: DType, device: Device) -> None:
        self.array = array
        self.dtype = dtype
        self.device = device

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        shape: tuple[int, ...] = self.array.shape
        return shape

    @property
    def num_bytes(self) -> int:
        """Bytes of the elements."""
        return int(self.array.nbytes)

    def __getitem__(self, index: slice | tuple[slice | EllipsisType, ...]) -> Tensor:
        """A view of the elements in `index`."""
        return Tensor(self.array[index], self.dtype, self.device)

    def reshape(self, *shape: int) -> Tensor:
        """The same elements in another shape."""
        return Tensor(self.array.reshape(shape), self.dtype, self.device)

    def __repr__(self) -> str:
        return f"Tensor({list(self.shape)}, {self.dtype}, {self.device.kind}:{self.device.index})"
