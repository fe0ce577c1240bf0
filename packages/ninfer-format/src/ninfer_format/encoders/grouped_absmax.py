"""`grouped_absmax`: the reference encoder of grouped integers (formats specification, 8.1)."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ninfer_format.codecs.grouped_words import GroupedWords
from ninfer_format.dtypes import GroupedFormat, get_format
from ninfer_format.encoders.group_quantization import GroupQuantization
from ninfer_format.errors import ArtifactError
from ninfer_format.layouts import ROW_SPLIT_K128_V1


def grouped_absmax(values: NDArray[Any], format: str) -> GroupedWords:
    """Quantize a matrix to codes and binary16 scales, bit for bit as the specification says.

    Args:
        values: Floating values [N, K].
        format: A grouped-integer format.

    Returns:
        The logical words.

    Raises:
        ArtifactError: `codec`: the source is not a floating matrix, holds a value that is not
            finite in binary32, or needs a scale beyond binary16; `encoding`: not a grouped format.
    """
    grouped = get_format(format)
    if not isinstance(grouped, GroupedFormat) or format not in ROW_SPLIT_K128_V1.formats:
        raise ArtifactError("encoding", f"{format} is not a grouped-integer format")
    return GroupQuantization(format, grouped.group, grouped.qmin, grouped.qmax).quantize(values)
