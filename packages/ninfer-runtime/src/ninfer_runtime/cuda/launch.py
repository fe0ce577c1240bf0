"""Starting kernels with what CuPy cannot give them: clusters and overlap with the kernel before.

A kernel that is launched with `overlap` may begin while its predecessor still runs. It must call
``wait_for_previous_kernels`` before it touches anything that changes (launch_order.cuh).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ninfer_runtime.cuda.driver import check, driver
from ninfer_runtime.cuda.nvrtc import Cubin

POINTER = ctypes.c_void_p
INT = ctypes.c_int
FLOAT = ctypes.c_float

Argument = tuple[Any, Any]
"""A value and the C type that the kernel takes it as."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a kernel is spread over the device.

    Attributes:
        blocks: Blocks of the grid.
        threads: Threads of a block.
        shared_bytes: Dynamic shared memory of a block.
        cluster: Blocks of a cluster; it divides `blocks`.
        overlap: Whether the kernel may begin before its predecessor has ended (sm_90 and newer).
    """

    blocks: int
    threads: int
    shared_bytes: int = 0
    cluster: int = 1
    overlap: bool = False


@dataclass(slots=True)
class LoadedKernel:
    """A kernel on a device.

    Attributes:
        cubin: Its machine code and resources.
        function: The driver's handle.
    """

    cubin: Cubin
    function: Any
    _module: Any
    _shared_bytes: int = field(default=0)

    def launch(self, geometry: Geometry, arguments: Sequence[Argument], stream: int) -> None:
        """Queue the kernel on a stream.

        Args:
            geometry: Its spread.
            arguments: What the kernel takes, in order.
            stream: The stream's handle.

        Raises:
            DeviceError: The driver refuses.
        """
        cuda = driver()
        self._allow_shared(geometry.shared_bytes)
        config = cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = geometry.blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = geometry.threads, 1, 1
        config.sharedMemBytes = geometry.shared_bytes
        config.hStream = cuda.CUstream(stream)
        attributes = _attributes(cuda, geometry)
        config.attrs, config.numAttrs = attributes, len(attributes)
        values = tuple(value for value, _ in arguments)
        types = tuple(kind for _, kind in arguments)
        check(
            cuda.cuLaunchKernelEx(config, self.function, (values, types), 0),
            f"launch of {self.cubin.symbol}",
        )

    def _allow_shared(self, num_bytes: int) -> None:
        # Without leave a block gets 48 KiB, less what the kernel declares itself.
        if num_bytes <= self._shared_bytes:
            return
        cuda = driver()
        attribute = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(
            cuda.cuFuncSetAttribute(self.function, attribute, num_bytes),
            f"{num_bytes} bytes of shared memory for {self.cubin.symbol}",
        )
        self._shared_bytes = num_bytes


def load_kernel(cubin: Cubin) -> LoadedKernel:
    """Load machine code into the current context.

    Raises:
        DeviceError: The driver refuses it, for example because the code is of another architecture.
    """
    cuda = driver()
    module = check(cuda.cuModuleLoadData(cubin.data), f"loading {cubin.symbol}")
    function = check(cuda.cuModuleGetFunction(module, cubin.symbol.encode()), cubin.symbol)
    return LoadedKernel(cubin, function, module)


def _attributes(cuda: Any, geometry: Geometry) -> list[Any]:
    attributes = []
    kinds = cuda.CUlaunchAttributeID
    if geometry.overlap:
        overlap = cuda.CUlaunchAttribute()
        overlap.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        overlap.value.programmaticStreamSerializationAllowed = 1
        attributes.append(overlap)
    if geometry.cluster > 1:
        cluster = cuda.CUlaunchAttribute()
        cluster.id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster.value.clusterDim.x = geometry.cluster
        cluster.value.clusterDim.y = 1
        cluster.value.clusterDim.z = 1
        attributes.append(cluster)
    return attributes
