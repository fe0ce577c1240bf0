"""What a source of weights is to the converter: tensors or parameters by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_format.errors import CheckpointError
from ninfer_quant.sources.logical import LogicalSource


class WeightStore:
    """Where weights are; headers are read when it is made, weights when a source is read.

    Attributes:
        path: File or folder.
        config: The ``config.json`` beside the weights; empty if there is none.
        stored_names: Names of everything that the files hold.
        files: The files that are read.
    """

    def __init__(
        self,
        path: Path,
        *,
        config: Mapping[str, Any],
        stored_names: tuple[str, ...],
        files: tuple[Path, ...],
    ) -> None:
        self.path = path
        self.config = config
        self.stored_names = stored_names
        self.files = files


class TensorStore(WeightStore, ABC):
    """Weights under the names that a Hugging Face checkpoint gives its tensors.

    A quantized matrix is one tensor here, called as if it were not quantized.

    Attributes:
        names: Names that `tensor` knows.
    """

    names: frozenset[str]

    @abstractmethod
    def tensor(self, name: str) -> LogicalSource:
        """The values of a tensor, and its words if it is quantized in a format that has some.

        Raises:
            CheckpointError: There is no such tensor, or what belongs to it is not as it should be.
        """

    def missing_parts(self, name: str) -> tuple[str, ...]:
        """Stored tensors that `tensor` would need beside those that there are, by name."""
        return () if name in self.names else (name,)


class ParameterStore(WeightStore, ABC):
    """Weights under logical names.

    Attributes:
        names: Names that `parameter` knows.
    """

    names: frozenset[str]

    @abstractmethod
    def parameter(self, name: str, shape: tuple[int, ...]) -> LogicalSource:
        """The values of a parameter, and its words if it is quantized.

        Raises:
            CheckpointError: There is no such parameter, or it has another shape.
        """


class AbsentSource(LogicalSource):
    """Stands for weights that a checkpoint does not have, as long as nobody reads them.

    Args:
        shape: Shape that they would have.
        tensors: Names of the tensors that are missing.
        path: The checkpoint.
        is_planned: Whether the weights are only not there yet, so that a plan may count on them.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        tensors: tuple[str, ...],
        path: Path,
        *,
        is_planned: bool = False,
    ) -> None:
        super().__init__(shape, tensors[0], tensors, path)
        self.path = path
        self.is_planned = is_planned

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32, which every weight can be converted from."""
        return np.dtype(np.float32)

    def _read(self, begin: int, end: int) -> np.ndarray:
        raise CheckpointError(
            f"tensor {self.label!r} is missing", path=self.path, tensors=self.tensors
        )
