"""What can be said of the CUDA device without one."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from ninfer_format.errors import ExitCode
from ninfer_runtime.cuda import properties
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import Geometry
from ninfer_runtime.cuda.properties import check_driver, read_properties
from ninfer_runtime.device import DType, cuda, get_device
from ninfer_runtime.device.cuda import CudaDevice
from ninfer_runtime.errors import DeviceError, DeviceFailedError, DeviceMemoryError


@pytest.fixture
def without_driver(monkeypatch):
    def fail():
        raise DeviceError("device 'cuda' is not available: the NVIDIA driver is not installed")

    monkeypatch.setattr(properties, "driver", fail)


def test_without_a_driver_the_device_is_not_available(without_driver):
    with pytest.raises(DeviceError, match="the NVIDIA driver is not installed"):
        get_device("cuda")


def test_without_cupy_the_error_says_what_to_install(monkeypatch):
    def absent(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(cuda, "import_module", absent)
    with pytest.raises(DeviceError, match="no module cupy") as caught:
        cuda._import_cupy()
    assert "cuda13" in str(caught.value.hint)


def test_an_old_driver_is_refused():
    check_driver((13, 0), (13, 5))
    check_driver((13, 0), (12, 9))
    with pytest.raises(DeviceError, match=r"supports CUDA 12\.4, .* compiles for CUDA 13"):
        check_driver((12, 4), (13, 5))


ATTRIBUTES = {
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": 7,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": 5,
    "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": 40,
    "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 65536,
}

OLD_GPU = SimpleNamespace(
    CUdevice_attribute=SimpleNamespace(**{name: name for name in ATTRIBUTES}),
    cuDeviceGetCount=lambda: (0, 1),
    cuDeviceGet=lambda index: (0, index),
    cuDeviceGetName=lambda size, device: (0, b"Old\0\0"),
    cuDriverGetVersion=lambda: (0, 13020),
    cuDeviceGetAttribute=lambda attribute, device: (0, ATTRIBUTES[attribute]),
)


def test_properties_are_read(monkeypatch):
    monkeypatch.setattr(properties, "driver", lambda: OLD_GPU)
    found = read_properties(0)
    assert (found.name, found.driver_version) == ("Old", (13, 2))
    assert found.target.capability == (7, 5)
    assert found.target.shared_bytes == 65536


def test_an_old_gpu_and_an_absent_one_are_refused(monkeypatch):
    monkeypatch.setattr(properties, "driver", lambda: OLD_GPU)
    with pytest.raises(DeviceError, match=r"compute capability 7\.5, at least 8\.0"):
        CudaDevice()
    with pytest.raises(DeviceError, match=r"there is no GPU 1: 1 is visible"):
        CudaDevice(1)


def test_full_memory_is_an_error_that_names_the_gpu_and_what_is_free():
    def full(shape, dtype):
        raise MemoryError("Out of memory allocating 4,096 bytes")

    device = CudaDevice.__new__(CudaDevice)
    device.index = 1
    device.xp = SimpleNamespace(
        empty=full,
        cuda=SimpleNamespace(runtime=SimpleNamespace(memGetInfo=lambda: (10**9, 8 * 10**9))),
        get_default_memory_pool=lambda: SimpleNamespace(free_bytes=lambda: 5 * 10**8),
    )
    with pytest.raises(DeviceMemoryError) as caught:
        device.empty((1024,), DType.FP32)
    assert str(caught.value).startswith("the memory of GPU 1 is full: 1.5 of 8.0 GB are free")
    assert caught.value.exit_code == ExitCode.CAPACITY
    with pytest.raises(DeviceMemoryError):
        _ = device.workspace


def test_a_gpu_that_refuses_is_a_failure_and_no_bug(monkeypatch):
    def refuse():
        raise RuntimeError("cudaErrorDevicesUnavailable: busy or unavailable")

    capable = ATTRIBUTES | {"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": 9}
    gpu = SimpleNamespace(**vars(OLD_GPU))
    gpu.cuDeviceGetAttribute = lambda attribute, device: (0, capable[attribute])
    cupy = SimpleNamespace(cuda=SimpleNamespace(Device=lambda index: SimpleNamespace(use=refuse)))
    monkeypatch.setattr(properties, "driver", lambda: gpu)
    monkeypatch.setattr(cuda, "nvrtc_version", lambda: (13, 0))
    monkeypatch.setattr(cuda, "_import_cupy", lambda: cupy)
    with pytest.raises(DeviceFailedError, match="GPU 0 cannot be used: cudaErrorDevicesUnavail"):
        CudaDevice()


class Pool:
    """Takes memory as long as `growth` says."""

    def __init__(self, growth):
        self.growth = list(growth)
        self.taken = 0

    def malloc(self, size):
        return None

    def total_bytes(self):
        return self.taken


@pytest.mark.parametrize(("growth", "runs"), [([4, 0], 2), ([4, 2, 0], 3), ([0], 1), ([1] * 9, 5)])
def test_work_is_rehearsed_until_it_takes_no_new_memory(monkeypatch, growth, runs):
    pool = Pool(growth)
    allocators = []
    device: Any = CudaDevice.__new__(CudaDevice)
    device.workspace = None
    device.stream = SimpleNamespace(handle=9, synchronize=lambda: None)

    @contextmanager
    def using_allocator(allocator):
        allocators.append(allocator)
        yield
        allocators.pop()

    device.xp = SimpleNamespace(
        cuda=SimpleNamespace(MemoryPool=lambda: pool, using_allocator=using_allocator)
    )
    done = []

    def work():
        assert allocators == [pool.malloc]
        done.append(1)
        if pool.growth:
            pool.taken += pool.growth.pop(0)

    recorded = []

    def graph(stream, work, memory):
        recorded.append((stream, memory, list(allocators)))

    monkeypatch.setattr(cuda, "Graph", graph)
    device.capture(work)
    assert len(done) == runs
    assert recorded == [(9, pool, [pool.malloc])]
    assert allocators == []


def test_what_work_needs_is_noted_and_not_launched():
    device = CudaDevice.__new__(CudaDevice)
    device._noted = None
    kernels = [Kernel("a.cu", name) for name in ("f", "g", "f")]
    works = [lambda kernel=kernel: device.launch(kernel, Geometry(1, 1), []) for kernel in kernels]
    assert device.needs(works) == set(kernels)

    def fail():
        raise ValueError("shape")

    with pytest.raises(ValueError, match="shape"):
        device.needs([fail])
    assert device._noted is None
