"""What the op tests share: devices, inputs in every dtype, poisoned outputs, comparison."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ninfer_runtime.device import Device, DType, Tensor, get_device

POISON = {DType.FP32: np.float32(np.nan), DType.BF16: np.uint16(0x7FC0)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a module that says `ON_CUDA = True` on a GPU as well."""
    if "device" in metafunc.fixturenames and getattr(metafunc.module, "ON_CUDA", False):
        kinds = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
        metafunc.parametrize("device", kinds, indirect=True)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Device:
    if getattr(request, "param", "cpu") == "cuda":
        gpu: Device = request.getfixturevalue("gpu")
        return gpu
    return get_device("cpu")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20)


@pytest.fixture(params=[DType.FP32, DType.BF16], ids=str)
def dtype(request: pytest.FixtureRequest) -> DType:
    return DType(request.param)


@pytest.fixture
def tensor(device: Device) -> Callable[..., Tensor]:
    """Make a tensor of real values; a strided one has foreign elements between its rows."""

    def make(values, dtype: DType = DType.FP32, *, strided: bool = False) -> Tensor:
        values = np.asarray(values, np.float32)
        if not strided:
            return device.from_host(values, dtype)
        wide = np.full((*values.shape[:-1], values.shape[-1] + 5), np.nan, np.float32)
        wide[..., 2:-3] = values
        return device.from_host(wide, dtype)[..., 2:-3]

    return make


@pytest.fixture
def poisoned(device: Device) -> Callable[..., Tensor]:
    """An output tensor full of NaN, so that an element that is not written shows."""

    def make(shape, dtype: DType) -> Tensor:
        return device.from_host(np.full(shape, POISON[dtype]))

    return make


@pytest.fixture
def values_of(device: Device) -> Callable[[Tensor], np.ndarray]:
    """The values of a tensor in float64: what an oracle must start from."""
    return lambda tensor: device.to_host(tensor).astype(np.float64)


@pytest.fixture
def assert_rounded_once(device: Device) -> Callable[..., None]:
    """Compare with an oracle: float32 error, and for bf16 at most half a unit more."""

    def check(found: Tensor, expected: np.ndarray, tolerance: float = 1e-5) -> None:
        half_unit = 2.0**-8 if found.dtype is DType.BF16 else 0.0
        error = np.abs(device.to_host(found) - expected)
        allowed = tolerance * (1 + np.abs(expected)) + half_unit * np.abs(expected)
        assert found.shape == expected.shape
        assert not np.isnan(error).any()
        assert (error <= allowed).all(), f"largest error {error.max()}"

    return check
