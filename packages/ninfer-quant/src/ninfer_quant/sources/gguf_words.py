"""GGUF matrices whose blocks hold the very words of a format of ours."""

from __future__ import annotations

import numpy as np

from ninfer_format import GroupedWords
from ninfer_format.checkpoint.tensor_info import TensorInfo
from ninfer_format.dtypes import Q8_G32_FP16
from ninfer_quant.sources.encoded import EncodedSource

Q8_0 = "Q8_0"
_SCALE_BYTES = 2
_BLOCK_BYTES = _SCALE_BYTES + Q8_G32_FP16.group


class Q8Blocks(EncodedSource):
    """A ``Q8_0`` matrix: blocks of a binary16 scale and 32 codes, as ``q8_g32_fp16`` has them.

    Args:
        tensor: Where the blocks are.
    """

    def __init__(self, tensor: TensorInfo) -> None:
        N, K = tensor.shape
        super().__init__(Q8_G32_FP16.name, (N, K), tensor.name)
        self._tensor = tensor

    def _read(self, begin: int, end: int) -> GroupedWords:
        rows, K = end - begin, self.shape[1]
        groups = K // Q8_G32_FP16.group
        stored = np.empty(rows * groups * _BLOCK_BYTES, np.uint8)
        self._tensor.read_into(begin * groups * _BLOCK_BYTES, stored)
        blocks = stored.reshape(rows, groups, _BLOCK_BYTES)
        scales = np.ascontiguousarray(blocks[:, :, :_SCALE_BYTES]).view("<u2")
        codes = np.ascontiguousarray(blocks[:, :, _SCALE_BYTES:]).view(np.int8)
        return GroupedWords(codes.reshape(rows, K), scales.reshape(rows, groups))


class ReorderedColumns(EncodedSource):
    """A matrix of grouped integers with its columns in another order, whole groups at a time.

    Args:
        source: The matrix.
        columns: For each column, which one of the source it is: int ``[K]``.
    """

    def __init__(self, source: EncodedSource, columns: np.ndarray) -> None:
        super().__init__(source.format, source.shape, source.label)
        self._source = source
        self._columns = columns

    def _read(self, begin: int, end: int) -> GroupedWords:
        words = self._source.read_rows(begin, end)
        if not isinstance(words, GroupedWords):
            raise TypeError(f"{self.label}: words of {self.format} are no grouped integers")
        group = self.shape[1] // words.scales.shape[1]
        groups = self._columns[::group] // group
        return GroupedWords(words.codes[:, self._columns], words.scales[:, groups])
