"""What an op takes to a kernel: the device, and values with the C types of their parameters."""

from __future__ import annotations

from typing import cast

from ninfer_runtime.cuda.launch import FLOAT, INT, LONG, POINTER, Argument
from ninfer_runtime.cuda.rows import address
from ninfer_runtime.device.cuda import CudaDevice
from ninfer_runtime.device.tensor import Tensor


def device_of(tensor: Tensor) -> CudaDevice:
    """The GPU that a tensor lies on: implementations for it are called with no other tensors."""
    return cast(CudaDevice, tensor.device)


def pointer(tensor: Tensor) -> Argument:
    """The address of a tensor's first element."""
    return address(tensor), POINTER


def integers(*values: int) -> list[Argument]:
    """Values of type ``int`` or ``u32``."""
    return [(value, INT) for value in values]


def longs(*values: int) -> list[Argument]:
    """Values of type ``i64``: strides."""
    return [(value, LONG) for value in values]


def floats(*values: float) -> list[Argument]:
    """Values of type ``float``."""
    return [(value, FLOAT) for value in values]
