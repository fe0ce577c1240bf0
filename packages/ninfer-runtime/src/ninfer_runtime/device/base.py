"""What the runtime asks of a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ninfer_runtime.device.dtypes import DType

if TYPE_CHECKING:
    from ninfer_runtime.device.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a device, in bytes."""

    free_bytes: int
    total_bytes: int


class Device(Protocol):
    """A place where tensors lie and ops run."""

    @property
    def kind(self) -> str:
        """Name under which ops register their implementations, for example ``cpu``."""
        ...

    @property
    def index(self) -> int:
        """Number of the device among those of its kind."""
        ...

    @property
    def xp(self) -> Any:
        """The array module of the device: ``numpy`` or a module with its interface."""
        ...

    def empty(self, shape: Sequence[int], dtype: DType) -> Tensor:
        """A tensor with undefined elements."""
        ...

    def zeros(self, shape: Sequence[int], dtype: DType) -> Tensor:
        """A tensor of zeros."""
        ...

    def from_host(self, array: np.ndarray, dtype: DType | None = None) -> Tensor:
        """A tensor with the elements of a host array.

        Args:
            array: float32, int32, or uint16 words of `DType.BF16`. A float32 array is rounded
                if `dtype` is bf16. The tensor may share the array's memory.
            dtype: Element type of the tensor; by default the one that the array's type stores.

        Raises:
            DeviceError: The array's type does not give elements of `dtype`.
        """
        ...

    def to_host(self, tensor: Tensor) -> np.ndarray:
        """The elements on the host: float32 for fp32 and bf16, int32 for int32."""
        ...

    def synchronize(self) -> None:
        """Wait until all work given to the device is done."""
        ...

    def memory(self) -> Memory:
        """Memory of the device now."""
        ...
