"""Choosing where encoders compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ninfer_quant.array_module import Device


def choose_device(device: Device | None) -> Device:
    """The device that was asked for, else the best there is.

    Raises:
        DeviceError: It was asked for and is not there.
    """
    from ninfer_quant.array_module import array_module, default_device

    if device is None:
        return default_device()
    array_module(device)
    return device
