"""Devices by name, imported on first use so that a host without a GPU loads no GPU module."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import cast

from ninfer_runtime.device.base import Device
from ninfer_runtime.errors import DeviceError

DEVICES = {
    "cpu": "ninfer_runtime.device.cpu:CpuDevice",
    "cuda": "ninfer_runtime.device.cuda:CudaDevice",
}


def get_device(kind: str, index: int = 0) -> Device:
    """The device of a kind and number: one object, so that tensors of all callers go together.

    Args:
        kind: One of `DEVICES`.
        index: Number of the device among those of its kind.

    Raises:
        DeviceError: No device has this name, or it is not available here.
    """
    if kind not in DEVICES:
        raise DeviceError(f"unknown device {kind!r} (expected one of {', '.join(DEVICES)})")
    return _open(kind, index)


@cache
def _open(kind: str, index: int) -> Device:
    module, _, attribute = DEVICES[kind].partition(":")
    return cast(Device, getattr(import_module(module), attribute)(index))
