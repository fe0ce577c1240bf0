"""`q4_rows_maxabs`: the reference encoder of q4_g32_fp16_rows (formats specification, 8.2)."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ninfer_format.codecs.grouped_words import GroupedWords
from ninfer_format.dtypes import Q4_G32_FP16_ROWS
from ninfer_format.encoders.group_quantization import GroupQuantization
from ninfer_format.errors import ArtifactError

_GROUP = Q4_G32_FP16_ROWS.group
# The format also has code -8, this encoder is symmetric.
_QUANTIZATION = GroupQuantization(Q4_G32_FP16_ROWS.name, _GROUP, lowest=-7, highest=7)


def q4_rows_maxabs(values: NDArray[Any]) -> GroupedWords:
    """Quantize a table of rows to 4-bit codes and a binary16 scale per 32 columns.

    Args:
        values: Floating values [N, K], K a multiple of 32.

    Returns:
        Codes -7 to 7 and scales [N, K / 32], bit for bit as the specification says.

    Raises:
        ArtifactError: `codec`: the source is not such a matrix, holds a value that is not finite
            in binary32, or needs a scale beyond binary16.
    """
    if values.ndim == 2 and values.shape[1] % _GROUP:
        raise ArtifactError(
            "codec",
            "source rows are not whole groups",
            expected=f"a multiple of {_GROUP} columns",
            found=values.shape[1],
        )
    return _QUANTIZATION.quantize(values)
