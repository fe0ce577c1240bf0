"""An NVIDIA GPU as a device: CuPy holds the arrays, kernels are the project's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np

from ninfer_runtime import environment
from ninfer_runtime.cuda.compilation import compile_kernels
from ninfer_runtime.cuda.driver import check, driver
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import Argument, Geometry, LoadedKernel, load_kernel
from ninfer_runtime.cuda.memory import Arena
from ninfer_runtime.cuda.module_cache import ModuleCache
from ninfer_runtime.cuda.nvrtc import nvrtc_version
from ninfer_runtime.cuda.streams import Stream
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.base import Memory
from ninfer_runtime.device.cpu import CpuDevice
from ninfer_runtime.device.dtypes import STORAGE, DType, bf16_to_float32
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import DeviceError, DeviceFailedError, DeviceMemoryError

WORKSPACE_BYTES = 96 * 2**20
"""Enough for what every op needs for the sequences that an engine runs together, eight at most."""


@dataclass(frozen=True, slots=True)
class Properties:
    """A GPU and its driver.

    Attributes:
        name: What the vendor calls the device.
        target: What the choice of a kernel depends on.
        driver_version: Newest CUDA version that the driver supports, major and minor.
    """

    name: str
    target: Target
    driver_version: tuple[int, int]


class CudaDevice:
    """Implements `ninfer_runtime.device.base.Device`; see there for contracts.

    All work goes to one stream. Kernels are compiled when they are first used, unless `prepare` has
    been called.

    Args:
        index: Number of the GPU.

    Raises:
        DeviceError: There is no such GPU, it is older than Ampere, its driver is too old, or CuPy or
            cuda-bindings is not installed.
        DeviceFailedError: The GPU refuses, for example because another process has it for itself.
    """

    kind = "cuda"

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.properties = read_properties(index)
        self.target = self.properties.target
        self.architecture = self.target.architecture
        check_driver(self.properties.driver_version, nvrtc_version())
        self.xp: Any = _import_cupy()
        try:
            self.xp.cuda.Device(index).use()
            self.xp.cuda.runtime.free(0)  # makes the context
        except RuntimeError as error:
            raise DeviceFailedError(f"GPU {index} cannot be used: {error}") from error
        self.stream = Stream()
        self._cache = ModuleCache(environment.kernel_cache_dir())
        self._kernels: dict[Kernel, LoadedKernel] = {}

    # --- arrays ----------------------------------------------------------------------------

    def empty(self, shape: Sequence[int], dtype: DType) -> Tensor:
        """A tensor with undefined elements."""
        with self.allocating():
            return Tensor(self.xp.empty(tuple(shape), STORAGE[dtype]), dtype, self)

    def zeros(self, shape: Sequence[int], dtype: DType) -> Tensor:
        """A tensor of zeros."""
        with self.allocating(), self.on_stream():
            return Tensor(self.xp.zeros(tuple(shape), STORAGE[dtype]), dtype, self)

    def from_host(self, array: np.ndarray, dtype: DType | None = None) -> Tensor:
        """A tensor with the elements of a host array, copied."""
        host = CpuDevice().from_host(array, dtype)
        return Tensor(self.upload(host.array), host.dtype, self)

    def to_host(self, tensor: Tensor) -> np.ndarray:
        """The elements as float32 or int32."""
        array = self.download(tensor.array)
        return bf16_to_float32(array) if tensor.dtype is DType.BF16 else array

    def upload(self, array: np.ndarray) -> Any:
        """A host array of any type on the device."""
        with self.allocating(), self.on_stream():
            copy = self.xp.asarray(np.ascontiguousarray(array))
        self.synchronize()
        return copy

    def download(self, array: Any) -> np.ndarray:
        """A device array of any type on the host."""
        self.synchronize()
        with self.on_stream():
            host: np.ndarray = self.xp.asnumpy(array)
        return host

    def on_stream(self) -> Any:
        """A context in which the array module works on the device's stream."""
        return self.xp.cuda.Stream.from_external(self.stream)

    @contextmanager
    def allocating(self) -> Iterator[None]:
        """A context in which arrays are made: that the memory is full is an error of this project."""
        try:
            yield
        except MemoryError as error:
            memory = self.memory()
            raise DeviceMemoryError(
                f"the memory of GPU {self.index} is full: {memory.free_bytes / 1e9:.1f} of"
                f" {memory.total_bytes / 1e9:.1f} GB are free ({error})"
            ) from error

    # --- state -----------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait until all work given to the device is done."""
        self.stream.synchronize()

    def memory(self) -> Memory:
        """Memory of the device now; what CuPy keeps for reuse counts as free."""
        free, total = self.xp.cuda.runtime.memGetInfo()
        return Memory(int(free) + int(self.xp.get_default_memory_pool().free_bytes()), int(total))

    @cached_property
    def workspace(self) -> Arena:
        """Memory for what an op needs while it runs; the stream orders its uses."""
        with self.allocating():
            self._workspace_array = self.xp.empty(WORKSPACE_BYTES, np.uint8)
        return Arena(self._workspace_array.data.ptr, WORKSPACE_BYTES, "workspace")

    # --- kernels ---------------------------------------------------------------------------

    def prepare(
        self,
        kernels: Iterable[Kernel],
        advance: Callable[[int, str], None] = lambda amount, item: None,
    ) -> None:
        """Compile, in parallel, and load kernels that are not yet loaded.

        Args:
            kernels: Which.
            advance: Called with 1 and a name for each that is compiled.

        Raises:
            KernelCompileError: A source has an error.
        """
        missing = [(kernel, self.architecture) for kernel in set(kernels) - set(self._kernels)]
        for (kernel, _), cubin in compile_kernels(missing, self._cache, advance=advance).items():
            self._kernels[kernel] = load_kernel(cubin)

    def kernel(self, kernel: Kernel) -> LoadedKernel:
        """A kernel ready to be launched.

        Raises:
            KernelCompileError: Its source has an error.
        """
        loaded = self._kernels.get(kernel)
        if loaded is None:
            loaded = load_kernel(self._cache.load(kernel, self.architecture))
            self._kernels[kernel] = loaded
        return loaded

    def launch(self, kernel: Kernel, geometry: Geometry, arguments: Sequence[Argument]) -> None:
        """Queue a kernel on the device's stream.

        Args:
            kernel: Which.
            geometry: Its spread; `overlap` has no effect on devices that cannot.
            arguments: What it takes, in order.

        Raises:
            KernelCompileError: Its source has an error.
            DeviceError: The driver refuses the launch.
        """
        if geometry.overlap and not self.target.has_clusters:
            geometry = replace(geometry, overlap=False)
        self.kernel(kernel).launch(geometry, arguments, self.stream.handle)


def read_properties(index: int) -> Properties:
    """Properties of a GPU.

    Raises:
        DeviceError: There is no such GPU, or no driver.
    """
    cuda = driver()
    count = check(cuda.cuDeviceGetCount(), "counting the GPUs")
    if not 0 <= index < count:
        raise DeviceError(
            f"there is no GPU {index}: {count} {'is' if count == 1 else 'are'} visible",
            hint="choose another device, or use the cpu backend",
        )
    device = check(cuda.cuDeviceGet(index), f"opening GPU {index}")
    attributes = cuda.CUdevice_attribute

    def attribute(name: str) -> int:
        key = getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(check(cuda.cuDeviceGetAttribute(key, device), f"reading {name}"))

    version = int(check(cuda.cuDriverGetVersion(), "reading the driver's version"))
    name = check(cuda.cuDeviceGetName(128, device), "reading the GPU's name")
    target = Target(
        capability=(attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
        multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
        shared_bytes=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
    )
    return Properties(
        name=name.split(b"\0")[0].decode(),
        target=target,
        driver_version=(version // 1000, version % 1000 // 10),
    )


def check_driver(supported: tuple[int, int], compiler: tuple[int, int]) -> None:
    """Refuse a driver that does not run what the installed compiler makes.

    Args:
        supported: CUDA version of the driver.
        compiler: Version of NVRTC. Machine code of any minor version runs on any driver of its major
            version.

    Raises:
        DeviceError: The driver is of an older major version.
    """
    if supported[0] < compiler[0]:
        raise DeviceError(
            f"the NVIDIA driver supports CUDA {supported[0]}.{supported[1]}, this installation"
            f" compiles for CUDA {compiler[0]}",
            hint="update the driver, or install ninfer-runtime with the extra cuda12",
        )


def _import_cupy() -> Any:
    try:
        return import_module("cupy")
    except ImportError as error:
        raise DeviceError(
            "device 'cuda' is not available: this installation has no module cupy",
            hint="install ninfer-runtime with the extra cuda13 or cuda12, or use the cpu backend",
        ) from error
