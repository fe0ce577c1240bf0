"""Parts of an artifact onto a device: as records for products, or as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ninfer_runtime.device.dtypes import STORAGE, DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.packing import pack_on_host, relay
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS, ROWS
from ninfer_runtime.weights.payload_reader import PayloadReader
from ninfer_runtime.weights.stored_rows import Extent, StoredRows

if TYPE_CHECKING:
    from ninfer_format import Artifact
    from ninfer_runtime.device.base import Device
    from ninfer_runtime.device.cuda import CudaDevice
    from ninfer_runtime.weights.staging import Fill, Staging


class Loader(Protocol):
    """Loads from one artifact to one device."""

    def matrix(self, rows: StoredRows) -> PackedWeight:
        """A stored matrix in records.

        Raises:
            ArtifactError: The payload is not what its directory says, or a factor is no number.
            UnsupportedOpError: A row is too long.
        """
        ...

    def tensor(self, extents: Sequence[Extent], shape: tuple[int, ...], dtype: DType) -> Tensor:
        """Words that lie in extents of the payload, in a shape."""
        ...

    def close(self) -> None:
        """Wait until everything is there, and give back what loading took."""
        ...


class HostLoader:
    """Implements `Loader` on the host.

    Args:
        artifact: The open artifact.
        device: The host.
    """

    def __init__(self, artifact: Artifact, device: Device) -> None:
        self._artifact = artifact
        self._device = device
        self._reader = PayloadReader(artifact)

    def matrix(self, rows: StoredRows) -> PackedWeight:
        """Records in NumPy."""
        codec = rows.codec(rows.shape[0])
        payload = np.zeros(codec.geometry.num_bytes, np.uint8)
        self._reader.fill(payload, rows.extents(0, rows.shape[0]))
        divisors = codec.geometry.planes.get("divisors")
        if divisors is not None:  # those of the rows' matrices are in the factors
            payload[divisors.offset : divisors.end].view("<f4")[:] = 1
        data = pack_on_host(codec, payload, in_turns=rows.in_turns)
        row_scale = rows.row_scale(self._artifact)
        return PackedWeight(rows.format, rows.shape, data, row_scale, self._device)

    def tensor(self, extents: Sequence[Extent], shape: tuple[int, ...], dtype: DType) -> Tensor:
        """A copy in memory."""
        array = np.empty(shape, STORAGE[dtype])
        self._reader.fill(array.reshape(-1).view(np.uint8), extents)
        return Tensor(array, dtype, self._device)

    def close(self) -> None:
        """End the threads that read."""
        self._reader.close()


class GpuLoader:
    """Implements `Loader` on a GPU: reading, copying and re-laying go on at the same time.

    Nothing is waited for: work that the device is given later finds everything in its place.

    Args:
        artifact: The open artifact.
        device: The GPU.
        staging: What the bytes go through.
    """

    def __init__(self, artifact: Artifact, device: CudaDevice, staging: Staging) -> None:
        self._artifact = artifact
        self._device = device
        self._staging = staging
        self._reader = PayloadReader(artifact)

    def matrix(self, rows: StoredRows) -> PackedWeight:
        """Records made by a kernel, slice by slice of the rows."""
        shape = RECORD_FORMATS[rows.format].records_shape(rows.shape)
        data = self._device.empty(shape, DType.UINT8).array
        tile_bytes = shape[1] * shape[2]
        for begin, end in rows.slices(self._staging.num_bytes):
            self._relay(rows, begin, end, data.data.ptr + begin // ROWS * tile_bytes)
        row_scale = rows.row_scale(self._artifact)
        factors = None if row_scale is None else self._array(row_scale)
        return PackedWeight(rows.format, rows.shape, data, factors, self._device)

    def tensor(self, extents: Sequence[Extent], shape: tuple[int, ...], dtype: DType) -> Tensor:
        """A copy on the device."""
        tensor = self._device.empty(shape, dtype)
        address, step = int(tensor.array.data.ptr), self._staging.num_bytes
        for begin in range(0, tensor.num_bytes, step):
            part = _between(extents, begin, begin + step)
            num_bytes = min(step, tensor.num_bytes - begin)
            with self._staging.send(num_bytes, self._filling(part), address + begin):
                pass
        return tensor

    def close(self) -> None:
        """Wait until everything is there; end the threads and give back the buffers."""
        self._reader.close()
        self._staging.close()

    def _relay(self, rows: StoredRows, begin: int, end: int, records: int) -> None:
        codec = rows.codec(end - begin)
        num_bytes = codec.geometry.num_bytes
        if num_bytes > self._staging.num_bytes:
            detail = f"{rows.format} with {rows.columns} columns, which are too many to be loaded"
            raise UnsupportedOpError("linear", self._device.kind, detail=detail)
        fill = self._filling(rows.extents(begin, end))
        with self._staging.send(num_bytes, fill) as (stored, stream):
            relay(self._device, codec, stored, records, stream, in_turns=rows.in_turns)

    def _array(self, values: NDArray[np.float32]) -> Any:
        """Host values on the device."""
        array = self._device.empty(values.shape, DType.FP32).array
        data, step = values.view(np.uint8), self._staging.num_bytes
        for begin in range(0, data.size, step):
            part = data[begin : begin + step]
            with self._staging.send(part.size, _copying(part), array.data.ptr + begin):
                pass
        return array

    def _filling(self, extents: Sequence[Extent]) -> Fill:
        return lambda buffer: self._reader.fill(buffer, extents)


def _copying(data: NDArray[np.uint8]) -> Fill:
    return lambda buffer: np.copyto(buffer, data)


def _between(extents: Sequence[Extent], begin: int, end: int) -> list[Extent]:
    """The parts of extents whose targets lie in [begin, end), which become those from 0 on."""
    found = []
    for extent in extents:
        low = max(begin, extent.target)
        high = min(end, extent.target + extent.length)
        if low < high:
            source = extent.source + low - extent.target
            found.append(Extent(source, low - begin, high - low))
    return found
