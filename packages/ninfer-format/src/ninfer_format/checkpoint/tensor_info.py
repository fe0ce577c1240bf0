"""What a checkpoint's header says about one tensor, and reading its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ninfer_format.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a header says about one tensor.

    Attributes:
        name: Name of the tensor.
        dtype: Type as the header spells it, for example ``BF16`` or ``Q4_K``.
        shape: Shape in C order.
        num_bytes: Stored size.
        file: The file that holds it.
        offset: First byte in that file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    file: Path
    offset: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def read_into(self, offset: int, target: NDArray[np.uint8]) -> None:
        """Fill `target` with the stored bytes from `offset` on, counted from the tensor's start.

        Raises:
            CheckpointError: The file ends early.
            OSError: The file cannot be read.
        """
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.offset + offset)
            view = target.data
            while view.nbytes:
                count = file.readinto(view)
                if not count:
                    raise CheckpointError(
                        f"file ends inside tensor {self.name!r}",
                        path=self.file,
                        tensors=(self.name,),
                        hint="the file changed while it was read; download it again",
                    )
                view = view[count:]
