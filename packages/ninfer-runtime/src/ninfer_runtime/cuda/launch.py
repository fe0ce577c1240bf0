"""Starting kernels with what CuPy cannot give them: clusters and overlap with the kernel before.

A kernel that is launched with `overlap` may begin while its predecessor still runs. It must call
``wait_for_previous_kernels`` before it touches anything that changes (launch_order.cuh).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ninfer_runtime.cuda.driver import check, driver
from ninfer_runtime.cuda.nvrtc import Cubin

POINTER = ctypes.c_void_p
INT = ctypes.c_int
LONG = ctypes.c_longlong
FLOAT = ctypes.c_float
DOUBLE = ctypes.c_double
WORD = ctypes.c_ulonglong
WORDS = ctypes.c_uint * 960
"""So many that all parameters of a launch stay below the 4,096 bytes that every driver takes; the
value is bytes, filled up with zeros."""

_CODES = {
    POINTER: "P",
    INT: "i",
    LONG: "q",
    FLOAT: "f",
    DOUBLE: "d",
    WORD: "Q",
    WORDS: f"{ctypes.sizeof(WORDS)}s",
}
"""How `struct` names the types of parameters."""

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


class _Parameters:
    """Host memory in which the driver finds the parameters of a launch; it copies them at once.

    Args:
        types: C types of the parameters, in order.
    """

    def __init__(self, types: Sequence[Any]) -> None:
        self._types = tuple(types)
        codes = [_CODES[kind] for kind in types]
        self._layout = struct.Struct("@" + "".join(codes))
        self._block = ctypes.create_string_buffer(max(self._layout.size, 1))
        begin = ctypes.addressof(self._block)
        sizes = [struct.calcsize("@" + "".join(codes[: i + 1])) for i in range(len(codes))]
        places = [begin + end - ctypes.sizeof(kind) for end, kind in zip(sizes, types, strict=True)]
        self._places = (ctypes.c_void_p * max(len(places), 1))(*places)
        self._address = ctypes.addressof(self._places)

    def hold(self, values: Sequence[Any]) -> int:
        """Put values there; returns the address of the array of their addresses."""
        try:
            self._layout.pack_into(self._block, 0, *values)
        except struct.error:  # An unsigned number for a parameter that is told as signed.
            wrapped = [kind(value).value for kind, value in zip(self._types, values, strict=True)]
            self._layout.pack_into(self._block, 0, *wrapped)
        return self._address


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
    # A model launches the same few kernels again and again, always alike: what the driver wants to be
    # told in its own structures is built once.
    _configs: dict[tuple[Geometry, int], Any] = field(default_factory=dict)
    _parameters: dict[tuple[Any, ...], _Parameters] = field(default_factory=dict)

    def launch(self, geometry: Geometry, arguments: Sequence[Argument], stream: int) -> None:
        """Queue the kernel on a stream.

        Args:
            geometry: Its spread.
            arguments: What the kernel takes, in order.
            stream: The stream's handle.

        Raises:
            DeviceError: The driver refuses.
        """
        config = self._configs.get((geometry, stream))
        if config is None:
            self._allow_shared(geometry.shared_bytes)
            config = self._configs[geometry, stream] = _config(geometry, stream)
        types = tuple([kind for _, kind in arguments])
        parameters = self._parameters.get(types)
        if parameters is None:
            parameters = self._parameters[types] = _Parameters(types)
        address = parameters.hold([value for value, _ in arguments])
        check(
            driver().cuLaunchKernelEx(config, self.function, address, 0),
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


def _config(geometry: Geometry, stream: int) -> Any:
    cuda = driver()
    config = cuda.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = geometry.blocks, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = geometry.threads, 1, 1
    config.sharedMemBytes = geometry.shared_bytes
    config.hStream = cuda.CUstream(stream)
    attributes = _attributes(cuda, geometry)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


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
