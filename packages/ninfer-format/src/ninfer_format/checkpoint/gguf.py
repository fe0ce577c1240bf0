"""GGUF files: names, types, metadata and values of their tensors."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from ninfer_format.checkpoint.gguf_header import read_header
from ninfer_format.checkpoint.tensor_info import TensorInfo
from ninfer_format.checkpoint.tensor_table import TensorTable
from ninfer_format.errors import CheckpointError

_STORED: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F64": np.dtype("<f8"),
    "I8": np.dtype("<i1"),
    "I16": np.dtype("<i2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}
"""NumPy types of the tensors that are not quantized."""

_STEP_ELEMENTS = 1 << 18
"""Elements that are dequantized at a time, which bounds the intermediate arrays."""


class GgufCheckpoint(TensorTable):
    """The tensors of one GGUF file by name; nothing but the header is read until a tensor is.

    Args:
        path: A ``.gguf`` file of version 2 or 3, little-endian. A file of a split model has its
            own tensors only.

    Attributes:
        path: As given.
        version: Version of the file format.
        metadata: Keys and values; an array of numbers is a NumPy array, one of strings a list.
        names: All tensor names, sorted.

    Raises:
        CheckpointError: The file is damaged or not supported.
        OSError: The file cannot be read.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        header = read_header(Path(path))
        super().__init__(Path(path), {tensor.name: tensor for tensor in header.tensors})
        self.version = header.version
        self.metadata = header.metadata

    def read(self, name: str, begin: int = 0, end: int | None = None) -> NDArray[Any]:
        """Read elements [begin, end) of a tensor, flat in C order.

        Args:
            name: The tensor.
            begin: First element.
            end: Element after the last; None for all.

        Returns:
            A new array: float32 for a quantized tensor, else the stored type
            (ml_dtypes.bfloat16 for ``BF16``).

        Raises:
            CheckpointError: There is no such tensor, the range is outside it, its type cannot be
                dequantized, or the file ends early.
            OSError: The file cannot be read.
        """
        tensor = self.info(name)
        end = self._end(tensor, begin, end)
        dtype = _STORED.get(tensor.dtype)
        if dtype is not None:
            stored = np.empty(end - begin, dtype)
            tensor.read_into(begin * dtype.itemsize, stored.view(np.uint8))
            return stored
        values = np.empty(end - begin, np.float32)
        for first in range(begin, end, _STEP_ELEMENTS):
            last = min(first + _STEP_ELEMENTS, end)
            values[first - begin : last - begin] = _dequantized(tensor, first, last)
        return values


def _dequantized(tensor: TensorInfo, begin: int, end: int) -> NDArray[np.float32]:
    """Elements [begin, end); rows are whole blocks, so blocks are counted through all of them."""
    type_ = GGMLQuantizationType[tensor.dtype]
    block_elements, block_bytes = GGML_QUANT_SIZES[type_]
    first, last = begin // block_elements, -(-end // block_elements)
    blocks = np.empty((1, (last - first) * block_bytes), np.uint8)
    tensor.read_into(first * block_bytes, blocks[0])
    try:
        # Stored scales may be anything, infinities included.
        with np.errstate(all="ignore"):
            values: NDArray[np.float32] = dequantize(blocks, type_)
    except NotImplementedError:
        raise CheckpointError(
            f"tensor {tensor.name!r} is of type {tensor.dtype}, whose values cannot be read",
            path=tensor.file,
            tensors=(tensor.name,),
            hint="a newer version of the gguf package may do it",
        ) from None
    skipped = begin - first * block_elements
    return values.reshape(-1)[skipped : skipped + end - begin]
