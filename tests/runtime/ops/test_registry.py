from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.device import DType, Tensor
from ninfer_runtime.device.cpu import CpuDevice
from ninfer_runtime.errors import OpArgumentError, UnsupportedOpError
from ninfer_runtime.ops import registry
from ninfer_runtime.ops.add import add


class OtherDevice(CpuDevice):
    kind = "other"


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setattr(registry, "_implementations", dict(registry._implementations))


def test_a_device_without_implementation_is_refused_and_nothing_runs():
    device = OtherDevice()
    x, out = device.zeros((2, 3), DType.FP32), device.zeros((2, 3), DType.FP32)
    out.array[...] = 7
    with pytest.raises(UnsupportedOpError, match=r"op add .* device other for Tensor\(\[2, 3\]"):
        add(x, x, out=out)
    assert (out.array == 7).all()


def test_tensors_on_different_devices_are_refused(device):
    x = device.zeros((2,), DType.FP32)
    y = OtherDevice().zeros((2,), DType.FP32)
    with pytest.raises(OpArgumentError, match="other:0"):
        add(x, y)


def test_another_device_registers_its_own(device):
    def fill(x: Tensor, y: Tensor, out: Tensor) -> None:
        out.array[...] = 5

    registry.register("add", "other", fill)
    x = OtherDevice().zeros((2,), DType.FP32)
    assert add(x, x).array.tolist() == [5, 5]
    zeros = device.zeros((2,), DType.FP32)
    assert add(zeros, zeros).array.tolist() == [0, 0]


def test_a_module_is_imported_when_its_op_runs():
    registry.register("add", "other", "no_such_module:add")
    x = OtherDevice().from_host(np.zeros(2, np.float32))
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        add(x, x)
