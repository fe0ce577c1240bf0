"""The values of a quantized matrix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_format.dtypes import EXL3_MUL1
from ninfer_quant.sources.encoded import EncodedSource
from ninfer_quant.sources.logical import LogicalSource
from ninfer_quant.sources.words import word_values

_BAND_ROWS = 128
"""Rows that the transform of a trellis code mixes with each other."""


class DecodedSource(LogicalSource):
    """Decodes an encoded matrix and hands out its words as well.

    Args:
        encoded: The words.
        tensors: Names of the tensors that they come from.
        origin: The checkpoint that has these tensors; None if that is not known.
    """

    def __init__(self, encoded: EncodedSource, tensors: Sequence[str], origin: Path | None) -> None:
        super().__init__(encoded.shape, encoded.label, tensors, origin)
        self._encoded = encoded

    @property
    def encoded(self) -> EncodedSource:
        """The words."""
        return self._encoded

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32."""
        return np.dtype(np.float32)

    def _read(self, begin: int, end: int) -> np.ndarray:
        if begin == end:
            return np.empty(0, np.float32)
        N, K = self.shape
        step = _BAND_ROWS if self._encoded.format == EXL3_MUL1.name else self._encoded.row_block
        first = begin // K // step * step
        last = min(-(-end // (K * step)) * step, N)
        words = self._encoded.read_rows(first, last)
        values = word_values(self._encoded.format, words).reshape(-1)
        return values[begin - first * K : end - first * K]
