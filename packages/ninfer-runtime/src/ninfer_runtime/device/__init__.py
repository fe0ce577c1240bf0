"""Devices and the tensors that lie on them."""

from ninfer_runtime.device.base import Device, Memory
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.registry import get_device
from ninfer_runtime.device.tensor import Tensor

__all__ = ["DType", "Device", "Memory", "Tensor", "get_device"]
