"""A GPU of any kind that is not there: its arrays lie on the host, and nothing is launched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import Argument, Geometry
from ninfer_runtime.cuda.memory import ALIGNMENT
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.base import Memory
from ninfer_runtime.device.cuda import CudaDevice
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor


class DryArray(np.ndarray):
    """An array that tells its address as CuPy's do."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


class DryGpu(CudaDevice):
    """Notes what would be launched; everything that is computed is missing."""

    def __init__(self, target: Target) -> None:
        self.index = 0
        self.target = target
        self.architecture = target.architecture
        self.xp = array_module()
        self.stream = cast(Any, DryStream())
        self._kernels = {}
        self._noted = None
        self._observe = lambda kernel: None

    def use(self) -> None:
        pass

    def on_stream(self) -> AbstractContextManager[None]:
        return nullcontext()

    def memory(self) -> Memory:
        return Memory(1 << 50, 1 << 50)

    def pinned(self, num_words: int) -> np.ndarray:
        return np.zeros(num_words, np.int32)

    def shared(self, num_words: int) -> tuple[np.ndarray, Tensor]:
        host = np.zeros(num_words, np.int32)
        return host, Tensor(host.view(DryArray), DType.INT32, self)

    def copy_in(self, host: np.ndarray, tensor: Any) -> None:
        np.copyto(tensor.array, host)

    def clear(self, tensor: Any) -> None:
        tensor.array[...] = 0

    def prepare(
        self,
        kernels: Iterable[Kernel],
        advance: Callable[[int, str], None] = lambda amount, item: None,
    ) -> None:
        pass

    def launch(self, kernel: Kernel, geometry: Geometry, arguments: Iterable[Argument]) -> None:
        if self._noted is not None:
            self._noted.add(kernel)


class DryStream:
    """Work on it is done at once."""

    handle = 0

    def record(self) -> Any:
        return SimpleNamespace(wait=self.synchronize)

    def synchronize(self) -> None:
        pass


def array_module() -> Any:
    """What the device and the ops use of CuPy."""
    nothing = SimpleNamespace(
        setMathMode=_ignore,
        gemmEx=_ignore,
        CUBLAS_DEFAULT_MATH=0,
        CUBLAS_OP_N=0,
        CUBLAS_OP_T=1,
        CUBLAS_COMPUTE_32F=0,
        CUBLAS_GEMM_DEFAULT=0,
    )
    return SimpleNamespace(
        empty=_empty,
        zeros=lambda shape, dtype: np.zeros(shape, dtype).view(DryArray),
        asarray=lambda array: np.array(array).view(DryArray),
        asnumpy=np.array,
        random=SimpleNamespace(randint=_random_words, standard_normal=_standard_normal),
        cuda=SimpleNamespace(
            cublas=nothing,
            device=SimpleNamespace(get_cublas_handle=lambda: 0),
            runtime=SimpleNamespace(streamIsCapturing=lambda stream: False),
        ),
    )


def _empty(shape: tuple[int, ...], dtype: Any) -> DryArray:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    words = np.empty(size + ALIGNMENT, np.uint8)
    begin = -words.ctypes.data % ALIGNMENT
    array: DryArray = words[begin : begin + size].view(dtype).reshape(shape).view(DryArray)
    return array


def _random_words(low: int, high: int, size: Any, dtype: Any) -> DryArray:
    words: DryArray = np.random.default_rng(1).integers(low, high, size, dtype).view(DryArray)
    return words


def _standard_normal(shape: Any, dtype: Any) -> DryArray:
    values: DryArray = np.random.default_rng(1).standard_normal(shape, dtype).view(DryArray)
    return values


def _ignore(*arguments: object) -> None:
    pass
