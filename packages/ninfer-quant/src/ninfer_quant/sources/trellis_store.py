"""Folders of trellis-coded matrices under logical names, as the exl3 quantizer writes them."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ninfer_format import Exl3Words, SafetensorsCheckpoint
from ninfer_format.dtypes import EXL3_MUL1
from ninfer_format.errors import CheckpointError
from ninfer_quant.sources.decoded import DecodedSource
from ninfer_quant.sources.encoded import EncodedSource
from ninfer_quant.sources.logical import LogicalSource, TensorSource, reshape
from ninfer_quant.sources.safetensors_store import TRELLIS, safetensors_files
from ninfer_quant.sources.store import ParameterStore
from ninfer_quant.sources.words import TRELLIS_ROWS

_BLOCK = 128
_PARTS = (TRELLIS, ".su", ".sv")


def has_logical_trellis(checkpoint: SafetensorsCheckpoint) -> bool:
    """Whether a checkpoint holds trellis codes under logical names, which have slashes."""
    return any(name.endswith(TRELLIS) and "/" in name for name in checkpoint.names)


class TrellisStore(ParameterStore):
    """Matrices by logical name, each as ``{name}.trellis``, ``{name}.su`` and ``{name}.sv``.

    A group of parameters that runs as one weight is one matrix under the name of its first
    member, which has the rows of all of them then. Other tensors are parameters as they are.

    Args:
        checkpoint: The tensors.
    """

    def __init__(self, checkpoint: SafetensorsCheckpoint) -> None:
        super().__init__(
            checkpoint.path,
            config=checkpoint.config,
            stored_names=checkpoint.names,
            files=safetensors_files(checkpoint),
        )
        self._checkpoint = checkpoint
        self._matrices = {
            name.removesuffix(TRELLIS) for name in checkpoint.names if name.endswith(TRELLIS)
        }
        others = {name for name in checkpoint.names if not name.endswith(_PARTS)}
        self.names = frozenset(self._matrices | others)

    def matrix_shape(self, name: str) -> tuple[int, int] | None:
        """Rows and columns of the matrix stored under a name; None if there is none."""
        if name not in self._matrices:
            return None
        tiles = self._checkpoint.info(name + TRELLIS).shape
        return (tiles[0] * TRELLIS_ROWS, tiles[1] * TRELLIS_ROWS) if len(tiles) == 3 else None

    def parameter(self, name: str, shape: tuple[int, ...]) -> LogicalSource:
        """The matrix or plain tensor of a name; see `ParameterStore`."""
        if name in self._matrices:
            source: LogicalSource = _trellis_source(self._checkpoint, name)
        else:
            source = TensorSource(self._checkpoint, name)
        if source.num_elements != np.prod(shape, dtype=object) or (
            name in self._matrices and source.shape != shape
        ):
            raise CheckpointError(
                f"parameter {name!r} has shape {list(source.shape)}, expected {list(shape)}",
                path=self.path,
                tensors=source.tensors,
            )
        return reshape(source, shape)


def _trellis_source(checkpoint: SafetensorsCheckpoint, name: str) -> DecodedSource:
    tensors = tuple(name + part for part in _PARTS)
    missing = tuple(tensor for tensor in tensors if tensor not in checkpoint)
    if missing:
        raise CheckpointError(
            f"tensors are missing ({len(missing)}): {', '.join(missing)}",
            path=checkpoint.path,
            tensors=missing,
        )
    return DecodedSource(_StoredTrellis(checkpoint, name), tensors, checkpoint.path)


class _StoredTrellis(EncodedSource):
    def __init__(self, checkpoint: SafetensorsCheckpoint, name: str) -> None:
        self._trellis, self._su, self._sv = (name + part for part in _PARTS)
        self._checkpoint = checkpoint
        shape, half_bits = self._geometry()
        super().__init__(
            EXL3_MUL1.name,
            shape,
            self._trellis,
            bitrate_half_bits=half_bits,
            row_block=TRELLIS_ROWS,
        )
        self._check_vector(self._su, shape[1])
        self._check_vector(self._sv, shape[0])

    def _geometry(self) -> tuple[tuple[int, int], int]:
        info = self._checkpoint.info(self._trellis)
        if info.dtype == "U8" and len(info.shape) == 3 and info.shape[2] % TRELLIS_ROWS == 0:
            N, K = info.shape[0] * TRELLIS_ROWS, info.shape[1] * TRELLIS_ROWS
            half_bits = info.shape[2] // TRELLIS_ROWS
            if N % _BLOCK == K % _BLOCK == 0 and 2 <= half_bits <= 16:
                return (N, K), half_bits
        raise CheckpointError(
            f"tensor {info.name!r} of type {info.dtype} and shape {list(info.shape)} is no trellis "
            "code (expected U8 [N / 16, K / 16, 16 * half bits], N and K multiples of 128, "
            "2 to 16 half bits)",
            path=info.file,
            tensors=(info.name,),
        )

    def _check_vector(self, name: str, length: int) -> None:
        info = self._checkpoint.info(name)
        if info.dtype != "F32" or info.shape != (length,):
            raise CheckpointError(
                f"tensor {name!r} of type {info.dtype} and shape {list(info.shape)} holds no "
                f"multipliers (expected F32 {[length]})",
                path=info.file,
                tensors=(name,),
            )

    def _read(self, begin: int, end: int) -> Exl3Words:
        tile_bytes = self._checkpoint.info(self._trellis).shape[2]
        row_bytes = self.shape[1] // TRELLIS_ROWS * tile_bytes
        first, last = begin // TRELLIS_ROWS, end // TRELLIS_ROWS
        tiles = self._checkpoint.read(self._trellis, first * row_bytes, last * row_bytes)
        svh = self._checkpoint.read(self._sv, begin, end).view(np.uint32)
        shape = last - first, self.shape[1] // TRELLIS_ROWS, tile_bytes
        return Exl3Words(tiles.reshape(shape), self.input_scales()[np.newaxis], svh)

    def input_scales(self) -> np.ndarray:
        return self._input_scales

    @cached_property
    def _input_scales(self) -> np.ndarray:
        return self._checkpoint.read(self._su).view(np.uint32)
