"""GGUF files under Hugging Face names, with what their converter changed undone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_format import GgufCheckpoint
from ninfer_format.dtypes import Q8_G32_FP16
from ninfer_format.errors import CheckpointError
from ninfer_quant.sources.decoded import DecodedSource
from ninfer_quant.sources.encoded import EncodedSource
from ninfer_quant.sources.gguf_names import GgufTensor, gguf_tensors
from ninfer_quant.sources.gguf_words import Q8_0, Q8Blocks, ReorderedColumns
from ninfer_quant.sources.logical import LogicalSource, TensorSource, reshape, select_rows
from ninfer_quant.sources.store import TensorStore


class GgufStore(TensorStore):
    """The tensors of a GGUF file of a dense model of the qwen3_5 family: values, words of ``Q8_0`` too.

    Args:
        path: The file.
        text: Configuration of the text component of the model to be.
        vision_depth: Number of blocks of its vision tower; 0 without one.

    Raises:
        CheckpointError: The file is damaged.
    """

    def __init__(self, path: Path, text: Mapping[str, Any], vision_depth: int) -> None:
        checkpoint = GgufCheckpoint(path)
        super().__init__(path, config={}, stored_names=checkpoint.names, files=(path,))
        self._checkpoint = checkpoint
        self._text = text
        self._tensors = {
            name: tensor
            for name, tensor in gguf_tensors(text, vision_depth).items()
            if all(part in checkpoint for part in tensor.parts)
        }
        self.names = frozenset(self._tensors)

    def raw(self, name: str) -> LogicalSource:
        """One tensor of the file under its own name, as it is."""
        info = self._checkpoint.info(name)
        if info.dtype == Q8_0 and len(info.shape) == 2:
            return DecodedSource(Q8Blocks(info), (name,), self._checkpoint.path)
        return TensorSource(self._checkpoint, name)

    def tensor(self, name: str) -> LogicalSource:
        """A tensor with the converter's changes undone; see `TensorStore`."""
        if name not in self._tensors:
            raise CheckpointError(
                f"no tensor of the file is {name!r}", path=self.path, tensors=(name,)
            )
        tensor = self._tensors[name]
        source = self._stacked(tensor)
        if tensor.heads != "none":
            source = self._in_order(source, tensor)
        if tensor.change != "none":
            source = _Changed(source, tensor.change == "decay")
        if tensor.channel_axis:
            source = reshape(source, (source.shape[0], 1, *source.shape[1:]))
        return source

    def _stacked(self, tensor: GgufTensor) -> LogicalSource:
        parts = [self.raw(part) for part in tensor.parts]
        return parts[0] if len(parts) == 1 else _Stacked(parts)

    def _in_order(self, source: LogicalSource, tensor: GgufTensor) -> LogicalSource:
        """Put value heads back from the order of tiles to that of groups by key head."""
        key_heads = self._text["linear_num_key_heads"]
        groups = self._text["linear_num_value_heads"] // key_heads
        if groups == 1:
            return source
        length = 1 if tensor.heads == "row_scalars" else self._text["linear_value_head_dim"]
        heads = [group * key_heads + key for key in range(key_heads) for group in range(groups)]
        if tensor.heads == "columns":
            self._check_length(source, 1, len(heads) * length)
            return _HeadColumns(source, heads, length)
        first = 0
        if tensor.heads == "mixed_rows":
            first = 2 * key_heads * self._text["linear_key_head_dim"]
        self._check_length(source, 0, first + len(heads) * length)
        spans = [(first + head * length, first + (head + 1) * length) for head in heads]
        return select_rows(source, [(0, first), *spans] if first else spans)

    def _check_length(self, source: LogicalSource, axis: int, expected: int) -> None:
        if len(source.shape) <= axis or source.shape[axis] != expected:
            raise CheckpointError(
                f"tensor {source.label!r} has shape {list(source.shape)}, expected {expected} "
                f"along axis {axis}",
                path=self.path,
                tensors=source.tensors,
                hint="do config.json and the GGUF file belong together?",
            )


class _Changed(LogicalSource):
    """Values less one, or the logarithm of the negated values."""

    def __init__(self, source: LogicalSource, is_decay: bool) -> None:
        super().__init__(source.shape, source.label, source.tensors, source.origin)
        self._source = source
        self._is_decay = is_decay

    def _read(self, begin: int, end: int) -> np.ndarray:
        values = self._source.read_values(begin, end).astype(np.float64)
        if not self._is_decay:
            return (values - 1).astype(np.float32)
        if (values >= 0).any():
            raise CheckpointError(
                f"tensor {self.label!r} is no decay: not all its values are below zero",
                tensors=self.tensors,
            )
        return np.log(-values).astype(np.float32)


class _Stacked(LogicalSource):
    """Convolution kernels of single frames, stacked on the axis of time: ``[N, C, frames, ...]``."""

    def __init__(self, parts: list[LogicalSource]) -> None:
        N, C, *rest = parts[0].shape
        tensors = [name for part in parts for name in part.tensors]
        super().__init__((N, C, len(parts), *rest), parts[0].label, tensors, parts[0].origin)
        self._parts = parts

    def _read(self, begin: int, end: int) -> np.ndarray:
        whole = [part.read_values(0, part.num_elements).reshape(part.shape) for part in self._parts]
        return np.stack(whole, axis=2).reshape(-1)[begin:end]


class _HeadColumns(LogicalSource):
    """A matrix with blocks of columns in another order."""

    def __init__(self, source: LogicalSource, heads: list[int], length: int) -> None:
        super().__init__(source.shape, source.label, source.tensors, source.origin)
        self._source = source
        self._columns = (np.asarray(heads)[:, np.newaxis] * length + np.arange(length)).reshape(-1)
        self._length = length

    @property
    def encoded(self) -> EncodedSource | None:
        encoded = self._source.encoded
        # Groups of another format, or such that would be torn apart, have no words.
        if encoded is None or encoded.format != Q8_G32_FP16.name:
            return None
        is_whole = self._length % Q8_G32_FP16.group == 0
        return ReorderedColumns(encoded, self._columns) if is_whole else None

    def _read(self, begin: int, end: int) -> np.ndarray:
        if begin == end:
            return self._source.read_values(0, 0)
        K = self.shape[1]
        first, last = begin // K, -(-end // K)
        rows = self._source.read_values(first * K, last * K).reshape(-1, K)[:, self._columns]
        return rows.reshape(-1)[begin - first * K : end - first * K]
