"""What readers of checkpoints have in common: tensors by name, and ranges inside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ninfer_format.checkpoint.tensor_info import TensorInfo
from ninfer_format.errors import CheckpointError


class TensorTable:
    """The tensors of a checkpoint by name.

    Args:
        path: The checkpoint, as the user gave it.
        tensors: The tensors by name.

    Attributes:
        path: As given.
        names: All tensor names, sorted.
    """

    def __init__(self, path: Path, tensors: Mapping[str, TensorInfo]) -> None:
        self.path = path
        self.names: tuple[str, ...] = tuple(sorted(tensors))
        self._tensors = tensors

    @property
    def total_bytes(self) -> int:
        """Stored size of all tensors together."""
        return sum(tensor.num_bytes for tensor in self._tensors.values())

    def __contains__(self, name: object) -> bool:
        """Whether there is a tensor called `name`."""
        return name in self._tensors

    def info(self, name: str) -> TensorInfo:
        """Type, shape and place of a tensor; the shape is in C order, as NumPy has it.

        Raises:
            CheckpointError: There is no such tensor.
        """
        try:
            return self._tensors[name]
        except KeyError:
            raise CheckpointError(f"no tensor {name!r}", path=self.path, tensors=(name,)) from None

    def _end(self, tensor: TensorInfo, begin: int, end: int | None) -> int:
        """The end of a range of elements, None for all; checks the range."""
        end = tensor.elements if end is None else end
        if not 0 <= begin <= end <= tensor.elements:
            raise CheckpointError(
                f"tensor {tensor.name!r} has {tensor.elements} elements, not [{begin}, {end})",
                path=tensor.file,
                tensors=(tensor.name,),
            )
        return end
