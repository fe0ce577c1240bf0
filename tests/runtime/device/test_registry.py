from __future__ import annotations

import pytest

from ninfer_runtime.device import DType, get_device
from ninfer_runtime.errors import DeviceError


def test_cpu_is_a_device():
    device = get_device("cpu")
    assert (device.kind, device.index) == ("cpu", 0)
    assert device.zeros((1,), DType.FP32).device is device
    device.synchronize()


def test_an_unknown_device_is_refused():
    with pytest.raises(DeviceError, match=r"unknown device 'tpu' \(expected one of cpu, cuda\)"):
        get_device("tpu")


def test_a_device_is_opened_once():
    assert get_device("cpu") is get_device("cpu", 0)


def test_there_is_one_cpu():
    with pytest.raises(DeviceError, match="there is no cpu device 1") as caught:
        get_device("cpu", 1)
    assert caught.value.hint == "use device 0"
