"""float8 matrices: codes with a scale per row, per tensor or per tile."""

from __future__ import annotations

from functools import cached_property

import ml_dtypes
import numpy as np

from ninfer_format import Fp8RowWords, SafetensorsCheckpoint
from ninfer_format.codecs.small_floats import E4M3FN_VALUES
from ninfer_format.dtypes import FP8_E4M3FN_ROW_BF16
from ninfer_quant.sources.encoded import EncodedSource
from ninfer_quant.sources.logical import LogicalSource

TILE = 128
"""Rows and columns of a tile that shares a scale."""


class RowFp8(EncodedSource):
    """Codes and one bf16 scale per row.

    Args:
        checkpoint: Where the codes are.
        codes: Their tensor, F8_E4M3 ``[N, K]``.
        scales: bf16 words of the rows, uint16 ``[N]``.
    """

    def __init__(self, checkpoint: SafetensorsCheckpoint, codes: str, scales: np.ndarray) -> None:
        N, K = checkpoint.info(codes).shape
        super().__init__(FP8_E4M3FN_ROW_BF16.name, (N, K), codes)
        self._checkpoint = checkpoint
        self._scales = scales

    def _read(self, begin: int, end: int) -> Fp8RowWords:
        codes = _codes(self._checkpoint, self.label, begin, end)
        return Fp8RowWords(codes, self._scales[begin:end])


class ScaledFp8(LogicalSource):
    """The values of codes with F32 scales of rows or of tiles of 128 rows and columns.

    Args:
        checkpoint: Where the tensors are.
        codes: F8_E4M3 ``[N, K]``.
        scale: Multipliers ``[N, 1]``, ``[1, 1]`` or ``[ceil(N / 128), ceil(K / 128)]``.
        tile: Rows and columns that share a multiplier.
    """

    def __init__(
        self,
        checkpoint: SafetensorsCheckpoint,
        codes: str,
        scale: str,
        scale_shape: tuple[int, int],
        tile: tuple[int, int],
    ) -> None:
        super().__init__(checkpoint.info(codes).shape, codes, (codes, scale), checkpoint.path)
        self._checkpoint = checkpoint
        self._scale_name = scale
        self._scale_shape = scale_shape
        self._tile = tile

    @cached_property
    def _scales(self) -> np.ndarray:
        scales = self._checkpoint.read(self._scale_name)
        return scales.astype(np.float32).reshape(self._scale_shape)

    def _read(self, begin: int, end: int) -> np.ndarray:
        if begin == end:
            return np.empty(0, np.float32)
        K = self.shape[1]
        first, last = begin // K, -(-end // K)
        rows = np.minimum(np.arange(first, last) // self._tile[0], self._scale_shape[0] - 1)
        spread = np.repeat(self._scales[rows], self._tile[1], axis=1)
        if spread.shape[1] > 1:
            spread = spread[:, :K]
        values: np.ndarray = E4M3FN_VALUES[_codes(self._checkpoint, self.label, first, last)]
        with np.errstate(over="ignore", invalid="ignore"):
            values *= spread
        return values.reshape(-1)[begin - first * K : end - first * K]


def exact_bf16_words(scales: np.ndarray) -> np.ndarray | None:
    """bf16 words of scales, uint16; None if rounding would change one."""
    rounded = scales.astype(ml_dtypes.bfloat16)
    if not np.array_equal(rounded.astype(np.float32), scales.astype(np.float32)):
        return None
    return rounded.reshape(-1).view(np.uint16)


def _codes(checkpoint: SafetensorsCheckpoint, name: str, begin: int, end: int) -> np.ndarray:
    K = checkpoint.info(name).shape[1]
    return checkpoint.read(name, begin * K, end * K).view(np.uint8).reshape(-1, K)
