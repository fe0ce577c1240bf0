"""Words of grouped integers, and which of them are legal (formats specification, section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.checks import check_array, refuse_words
from ninfer_format.dtypes import GroupedFormat
from ninfer_format.errors import ArtifactError

_LARGEST_FINITE_HALF = 0x7BFF


@dataclass(frozen=True, slots=True)
class GroupedWords:
    """Logical words of a grouped-integer matrix [N, K].

    Attributes:
        codes: int8 [N, K].
        scales: binary16 words as uint16 [N, ceil(K / G)].
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.uint16]

    def rows(self, begin: int, end: int) -> GroupedWords:
        """The words of rows [begin, end)."""
        return GroupedWords(self.codes[begin:end], self.scales[begin:end])


def check_grouped_words(
    words: GroupedWords,
    grouped: GroupedFormat,
    shape: tuple[int, ...],
    first_row: int,
    first_column: int = 0,
) -> None:
    """Check codes in range, scales +0 or positive finite, and zero codes under zero scales.

    Args:
        words: The words.
        grouped: Their format.
        shape: The rows and columns that they must fill.
        first_row: Index in the object of the first of the rows, for messages.
        first_column: The same of the columns; the first of a group.

    Raises:
        ArtifactError: `codec`.
    """
    rows, columns = shape
    check_array(words.codes, np.int8, (rows, columns), f"{grouped.name} codes")
    groups = -(-columns // grouped.group)
    check_array(words.scales, np.uint16, (rows, groups), f"{grouped.name} scales")
    illegal = (words.codes < grouped.qmin) | (words.codes > grouped.qmax)
    legal = f"{grouped.qmin} to {grouped.qmax}"
    refuse_words(words.codes, illegal, f"{grouped.name} code", legal, first_row, first_column)
    # Also catches -0 and negative scales, whose words have the top bit set.
    illegal = words.scales > _LARGEST_FINITE_HALF
    what = f"{grouped.name} scale word"
    first_group = first_column // grouped.group
    refuse_words(words.scales, illegal, what, "0 to 0x7bff", first_row, first_group)
    zero_scales = words.scales == 0
    if not zero_scales.any():
        return
    group_starts = np.arange(0, columns, grouped.group)
    bad_groups = zero_scales & np.logical_or.reduceat(words.codes, group_starts, axis=1)
    if bad_groups.any():
        row, column = (int(index) for index in np.argwhere(bad_groups)[0])
        raise ArtifactError(
            "codec",
            f"{grouped.name} group under a zero scale has a code that is not 0: "
            f"row {first_row + row}, columns from {first_column + column * grouped.group}",
        )
