"""An NVIDIA GPU as a device: CuPy holds the arrays, kernels are the project's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np

from ninfer_runtime import environment
from ninfer_runtime.cuda import words
from ninfer_runtime.cuda.compilation import compile_kernels
from ninfer_runtime.cuda.driver import check, driver
from ninfer_runtime.cuda.graph import Graph
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import Argument, Geometry, LoadedKernel, load_kernel
from ninfer_runtime.cuda.memory import Arena
from ninfer_runtime.cuda.module_cache import ModuleCache
from ninfer_runtime.cuda.nvrtc import nvrtc_version
from ninfer_runtime.cuda.properties import check_driver, read_properties
from ninfer_runtime.cuda.streams import Event, Stream
from ninfer_runtime.device.base import Memory
from ninfer_runtime.device.cpu import CpuDevice
from ninfer_runtime.device.dtypes import STORAGE, DType, bf16_to_float32
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import DeviceError, DeviceFailedError, DeviceMemoryError

WORKSPACE_BYTES = 96 * 2**20
"""Enough for what every op needs for the sequences that an engine runs together, eight at most."""

_MOST_REHEARSALS = 5
"""Runs before a capture: the first takes memory, a later one may cut it differently once."""


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
    activation_dtype = DType.BF16

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
        self._noted: set[Kernel] | None = None
        self._observe: Callable[[Kernel], None] = lambda kernel: None

    # --- arrays ----------------------------------------------------------------------------

    def empty(self, shape: Sequence[int], dtype: DType) -> Tensor:
        """A tensor with undefined elements."""
        # The most frequent call of all: a context manager would take longer than the rest of it.
        try:
            return Tensor(self.xp.empty(tuple(shape), STORAGE[dtype]), dtype, self)
        except MemoryError as error:
            raise self._full(error) from error

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

    def use(self) -> None:
        """Make the GPU's context the current one of the calling thread."""
        self.xp.cuda.Device(self.index).use()

    def pinned(self, num_words: int) -> np.ndarray:
        """Host memory for int32 words that the device reads and writes by itself."""
        with self.allocating():
            memory = self.xp.cuda.alloc_pinned_memory(num_words * 4)
        return np.frombuffer(memory, np.int32, num_words)

    def shared(self, num_words: int) -> tuple[np.ndarray, Tensor]:
        """Host memory for int32 words, zeros, and the same as a tensor for kernels."""
        host = self.pinned(num_words)
        host[:] = 0
        cuda = self.xp.cuda
        # Memory that is pinned for the device has one address on both sides.
        memory = cuda.UnownedMemory(host.ctypes.data, host.nbytes, host, self.index)
        array = self.xp.ndarray((num_words,), np.int32, cuda.MemoryPointer(memory, 0))
        return host, Tensor(array, DType.INT32, self)

    def copy_in(self, host: np.ndarray, tensor: Tensor) -> None:
        """Queue few words of contiguous host memory, which may be changed at once."""
        for arguments in words.launches(host, tensor.array.data.ptr):
            self.launch(words.KERNEL, words.GEOMETRY, arguments)

    def clear(self, tensor: Tensor) -> None:
        """Queue a fill of a contiguous tensor with zeros."""
        code = driver().cuMemsetD8Async(
            tensor.array.data.ptr, 0, tensor.num_bytes, self.stream.handle
        )
        check(code, "a fill of device memory")

    def on_stream(self) -> Any:
        """A context in which the array module works on the device's stream."""
        return self.xp.cuda.Stream.from_external(self.stream)

    @contextmanager
    def allocating(self) -> Iterator[None]:
        """A context in which arrays are made: that the memory is full is an error of this project."""
        try:
            yield
        except MemoryError as error:
            raise self._full(error) from error

    def _full(self, error: MemoryError) -> DeviceMemoryError:
        memory = self.memory()
        return DeviceMemoryError(
            f"the memory of GPU {self.index} is full: {memory.free_bytes / 1e9:.1f} of"
            f" {memory.total_bytes / 1e9:.1f} GB are free ({error})"
        )

    # --- state -----------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait until all work given to the device is done."""
        self.stream.synchronize()

    def mark(self) -> Event:
        """A point behind all work given to the device so far, which can be waited for."""
        return self.stream.record()

    def capture(self, work: Callable[[], object]) -> Graph:
        """Record work that is to be repeated.

        The work runs a few times before, until it asks for no new memory; all it allocates comes from
        a pool of its own, which the graph keeps: nobody else gets memory that a replay writes to.

        Args:
            work: Launches on the device's stream. It always does the same, does not synchronise and
                reads no results.
        """
        _ = self.workspace  # belongs to the device, not to the graph
        pool = self.xp.cuda.MemoryPool()
        with self.xp.cuda.using_allocator(pool.malloc), self.allocating():
            for _ in range(_MOST_REHEARSALS):
                before = pool.total_bytes()
                work()
                self.synchronize()
                if pool.total_bytes() == before:
                    break
            return Graph(self.stream.handle, work, memory=pool)

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

    def needs(self, works: Iterable[Callable[[], object]]) -> set[Kernel]:
        """The kernels that some work launches; none is launched."""
        self._noted = noted = set[Kernel]()
        try:
            for work in works:
                work()
        finally:
            self._noted = None
        return noted

    def announce(self, work: Kernel) -> None:
        """Tell whoever observes that work of a library comes next, under the name of a kernel."""
        if self._noted is None:
            self._observe(work)

    @contextmanager
    def observed(self, observe: Callable[[Kernel], None]) -> Iterator[None]:
        """A context in which `observe` is called before each launch, and before library work."""
        before, self._observe = self._observe, observe
        try:
            yield
        finally:
            self._observe = before

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
        if self._noted is not None:
            self._noted.add(kernel)
            return
        if geometry.overlap and not self.target.has_clusters:
            geometry = replace(geometry, overlap=False)
        self._observe(kernel)
        self.kernel(kernel).launch(geometry, arguments, self.stream.handle)


def _import_cupy() -> Any:
    try:
        return import_module("cupy")
    except ImportError as error:
        raise DeviceError(
            "device 'cuda' is not available: this installation has no module cupy",
            hint="install ninfer-runtime with the extra cuda13 or cuda12, or use the cpu backend",
        ) from error
