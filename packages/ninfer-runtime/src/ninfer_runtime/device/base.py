"""What the runtime asks of a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
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


class Mark(Protocol):
    """A point in the work of a device."""

    def wait(self) -> None:
        """Wait until the device has passed it."""
        ...


class Recording(Protocol):
    """Work of a device that can be repeated.

    Attributes:
        result: What the recorded run of the work returned; each repetition changes its tensors.
    """

    result: Any

    def replay(self) -> None:
        """Give the device the work to do once more."""
        ...

    def close(self) -> None:
        """Release it, and the memory of its tensors."""
        ...


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

    @property
    def activation_dtype(self) -> DType:
        """Element type of what a model computes between its ops here."""
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

    def use(self) -> None:
        """Make the calling thread one that may give the device work; only one at a time does."""
        ...

    def pinned(self, num_words: int) -> np.ndarray:
        """Host memory for int32 words [num_words] that the device reads and writes by itself."""
        ...

    def shared(self, num_words: int) -> tuple[np.ndarray, Tensor]:
        """Host memory for int32 words [num_words], zeros, and the same as a tensor for kernels.

        What the host writes is seen by work that is given to the device afterwards; what kernels write
        is seen when a later `mark` has been passed.
        """
        ...

    def copy_in(self, host: np.ndarray, tensor: Tensor) -> None:
        """Give the device few words of contiguous host memory for a contiguous tensor.

        `host` may be changed at once.
        """
        ...

    def clear(self, tensor: Tensor) -> None:
        """Give the device a fill of a contiguous tensor with zeros to do."""
        ...

    def mark(self) -> Mark:
        """A point behind all work given to the device so far."""
        ...

    def needs(self, works: Iterable[Callable[[], object]]) -> AbstractSet[Any]:
        """What has to be made ready for some work, such as compiled kernels; the work is not done.

        Args:
            works: As for `capture`.
        """
        ...

    def prepare(
        self, needed: Iterable[Any], advance: Callable[[int, str], None] = lambda amount, item: None
    ) -> None:
        """Make ready what `needs` has named.

        Args:
            needed: What.
            advance: Called with 1 and a name for each thing that has been made ready.
        """
        ...

    def capture(self, work: Callable[[], object]) -> Recording:
        """Record work that is to be repeated; it is run before as often as that takes.

        Args:
            work: Always does the same with the device, waits for nothing and reads no results.
        """
        ...

    def synchronize(self) -> None:
        """Wait until all work given to the device is done."""
        ...

    def memory(self) -> Memory:
        """Memory of the device now."""
        ...
