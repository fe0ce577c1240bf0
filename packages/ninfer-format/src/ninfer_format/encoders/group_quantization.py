"""What the encoders of grouped integers share: one scale per group from its largest magnitude.

The scale is the largest magnitude over the largest code, rounded to binary16; codes are the values
times the rounded reciprocal of that scale. All steps round in binary32, and dividing instead of
multiplying by the reciprocal would give other codes (formats specification, section 8.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.grouped_words import GroupedWords
from ninfer_format.encoders.sources import check_floating_matrix, row_blocks, to_binary32
from ninfer_format.errors import ArtifactError

_SMALLEST_SCALE = np.float32(2.0**-24)
"""Value of the binary16 word 0x0001, which stands in for scales that round to zero."""


@dataclass(frozen=True, slots=True)
class GroupQuantization:
    """How an encoder quantizes groups.

    Attributes:
        format: Name of the numeric format.
        group: Elements that share one scale.
        lowest: Smallest code to use.
        highest: Largest code, and what the largest magnitude of a group becomes.
    """

    format: str
    group: int
    lowest: int
    highest: int

    def quantize(self, values: NDArray[Any]) -> GroupedWords:
        """Quantize a matrix [N, K]; a last partial group counts as if it went on with zeros.

        Raises:
            ArtifactError: `codec`: the source is not a floating matrix, holds a value that is not
                finite in binary32, or needs a scale beyond binary16.
        """
        check_floating_matrix(values)
        rows, columns = values.shape
        codes = np.empty((rows, columns), dtype=np.int8)
        scales = np.empty((rows, -(-columns // self.group)), dtype=np.uint16)
        for begin, end in row_blocks(values):
            codes[begin:end], scales[begin:end] = self._quantize_rows(values[begin:end], begin)
        return GroupedWords(codes, scales)

    def _quantize_rows(
        self, values: NDArray[Any], first_row: int
    ) -> tuple[NDArray[np.int8], NDArray[np.uint16]]:
        rows, columns = values.shape
        groups = -(-columns // self.group)
        x = to_binary32(values)
        if columns != groups * self.group:
            padded = np.zeros((rows, groups * self.group), dtype=np.float32)
            padded[:, :columns] = x
            x = padded
        x = x.reshape(rows, groups, self.group)
        amax = np.abs(x).max(axis=2)
        self._refuse(~np.isfinite(amax), "a source value that is not finite", first_row)
        with np.errstate(over="ignore"):
            half = (amax / np.float32(self.highest)).astype(np.float16)
        self._refuse(np.isinf(half), "a scale beyond binary16", first_row)
        scale = half.astype(np.float32)
        scale[(scale == 0) & (amax > 0)] = _SMALLEST_SCALE
        inverse = np.zeros_like(scale)
        np.divide(np.float32(1), scale, out=inverse, where=scale > 0)
        q = x * inverse[:, :, np.newaxis]
        np.rint(q, out=q)
        np.clip(q, self.lowest, self.highest, out=q)
        codes = q.astype(np.int8).reshape(rows, -1)[:, :columns]
        return codes, scale.astype(np.float16).view(np.uint16)

    def _refuse(self, bad: NDArray[np.bool_], what: str, first_row: int) -> None:
        if bad.any():
            row, group = (int(index) for index in np.argwhere(bad)[0])
            first = group * self.group
            raise ArtifactError(
                "codec",
                f"{self.format} cannot hold row {first_row + row}, "
                f"columns {first} to {first + self.group - 1}: {what}",
            )
