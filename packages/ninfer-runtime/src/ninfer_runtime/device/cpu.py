"""The host as a device: NumPy arrays and the reference implementation of every op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_runtime.device.base import Memory
from ninfer_runtime.device.dtypes import STORAGE, DType, bf16_to_float32, float32_to_bf16
from ninfer_runtime.device.repetition import Repetition
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import DeviceError

_STORED_BY = {storage: dtype for dtype, storage in STORAGE.items()}
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


class _Passed:
    """Implements `ninfer_runtime.device.base.Mark`."""

    def wait(self) -> None:
        """Nothing to wait for."""


class CpuDevice:
    """Implements `ninfer_runtime.device.base.Device`; see there for contracts.

    Args:
        index: Number of the device: 0, there is one only.

    Raises:
        DeviceError: Another number.
    """

    kind = "cpu"
    activation_dtype = DType.FP32
    xp: Any = np

    def __init__(self, index: int = 0) -> None:
        if index:
            raise DeviceError(f"there is no cpu device {index}", hint="use device 0")
        self.index = index

    def empty(self, shape: Sequence[int], dtype: DType) -> Tensor:
        """A tensor with undefined elements."""
        return Tensor(np.empty(shape, STORAGE[dtype]), dtype, self)

    def zeros(self, shape: Sequence[int], dtype: DType) -> Tensor:
        """A tensor of zeros."""
        return Tensor(np.zeros(shape, STORAGE[dtype]), dtype, self)

    def from_host(self, array: np.ndarray, dtype: DType | None = None) -> Tensor:
        """A tensor with the elements of a host array, which it shares where it can."""
        stored = _STORED_BY.get(array.dtype)
        wanted = stored if dtype is None else dtype
        if wanted is DType.BF16 and stored is DType.FP32:
            return Tensor(float32_to_bf16(array), DType.BF16, self)
        if stored is None or wanted is not stored:
            raise DeviceError(
                f"a host array of {array.dtype} does not give a tensor of {dtype or 'any dtype'}"
            )
        return Tensor(array, stored, self)

    def to_host(self, tensor: Tensor) -> np.ndarray:
        """The elements as float32 or int32; shares the tensor's memory unless it is bf16."""
        array: np.ndarray = tensor.array
        return bf16_to_float32(array) if tensor.dtype is DType.BF16 else array

    def use(self) -> None:
        """Nothing to do."""

    def pinned(self, num_words: int) -> np.ndarray:
        """Host memory for int32 words."""
        return np.zeros(num_words, np.int32)

    def shared(self, num_words: int) -> tuple[np.ndarray, Tensor]:
        """Host memory for int32 words, and the same as a tensor."""
        host = self.pinned(num_words)
        return host, self.from_host(host)

    def copy_in(self, host: np.ndarray, tensor: Tensor) -> None:
        """Copy host memory into a tensor."""
        np.copyto(tensor.array, host)

    def clear(self, tensor: Tensor) -> None:
        """Fill a tensor with zeros."""
        tensor.array[...] = 0

    def mark(self) -> _Passed:
        """A point that has been passed: NumPy returns when it is done."""
        return _Passed()

    def capture(self, work: Callable[[], object]) -> Repetition:
        """Remember work; it is not run before."""
        return Repetition(work)

    def needs(self, works: Iterable[Callable[[], object]]) -> frozenset[Any]:
        """Nothing has to be made ready."""
        return frozenset()

    def prepare(
        self, needed: Iterable[Any], advance: Callable[[int, str], None] = lambda amount, item: None
    ) -> None:
        """Nothing has to be made ready."""

    def synchronize(self) -> None:
        """Nothing to wait for: NumPy returns when it is done."""

    def memory(self) -> Memory:
        """Memory that the process can still take, within the limit of its control group."""
        meminfo = _read_table(_MEMINFO)
        host = Memory(meminfo["MemAvailable"] * 1024, meminfo["MemTotal"] * 1024)
        group = _control_group_memory()
        if group is None:
            return host
        return Memory(
            min(host.free_bytes, group.free_bytes), min(host.total_bytes, group.total_bytes)
        )


def _control_group_memory() -> Memory | None:
    """Limit of the control group (version 2), None where there is none."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        # Pages of files that nobody uses now are counted as used but given back on demand.
        used -= _read_table(_CGROUP / "memory.stat")["inactive_file"]
    except OSError:
        return None
    if limit == "max":
        return None
    return Memory(max(0, int(limit) - used), int(limit))


def _read_table(path: Path) -> dict[str, int]:
    """The numbers of a file with one ``name value`` or ``name: value unit`` a line."""
    rows = (line.replace(":", " ").split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1}
