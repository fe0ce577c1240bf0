"""Devices by name, imported on first use so that a host without a GPU loads no GPU module."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from ninfer_runtime.device.base import Device
from ninfer_runtime.errors import DeviceError

DEVICES = {
    "cpu": "ninfer_runtime.device.cpu:CpuDevice",
    "cuda": "ninfer_runtime.device.cuda:CudaDevice",
}


def get_device(kind: str) -> Device:
    """Open the device called `kind`.

    Raises:
        DeviceError: No device has this name, or it is not available here.
    """
    target = DEVICES.get(kind)
    if target is None:
        raise DeviceError(f"unknown device {kind!r} (expected one of {', '.join(DEVICES)})")
    module, _, attribute = target.partition(":")
    return cast(Device, getattr(import_module(module), attribute)())
