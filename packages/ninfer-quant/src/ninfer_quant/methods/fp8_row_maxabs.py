"""``fp8_row_maxabs``: E4M3FN codes and one bf16 scale a row, from the row's maximum."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ninfer_format import Fp8RowWords, fp8_row_maxabs
from ninfer_format.dtypes import FP8_E4M3FN_ROW_BF16
from ninfer_format.errors import ArtifactError
from ninfer_quant.array_module import to_host
from ninfer_quant.encoders.fp8_rows import quantize_rows
from ninfer_quant.methods.chunk_values import chunk_values
from ninfer_quant.methods.request import MethodJob, MethodRequest, ObjectOutput
from ninfer_quant.methods.target_checks import require_format

NAME = "fp8_row_maxabs"


def plan_fp8_row_maxabs(request: MethodRequest) -> MethodJob:
    """Fill an object of fp8_e4m3fn_row_bf16 (format specification, section 8.3).

    Raises:
        RecipeError: The target is no matrix of this format, or parameters were given.
    """
    request.refuse_parameters()
    require_format(NAME, request, FP8_E4M3FN_ROW_BF16.name)

    def produce(output: ObjectOutput) -> None:
        for first, last in request.chunks():
            with request.encoding(first):
                words = _words(request, first, last)
            output.write_rows(first, words)

    return MethodJob(produce)


def _words(request: MethodRequest, first: int, last: int) -> Fp8RowWords:
    if request.device == "cpu":
        # The same words, from arithmetic that is arranged for the caches of a CPU.
        return fp8_row_maxabs(request.matrix(first, last))
    xp, x = chunk_values(request, first, last)
    codes, scales, is_bad = quantize_rows(xp, x)
    if bool(is_bad.any()):
        raise ArtifactError(
            "codec",
            f"{FP8_E4M3FN_ROW_BF16.name} cannot hold row {int(is_bad.argmax())}: a value that is "
            "not finite in bf16, or values too small to be scaled",
        )
    return Fp8RowWords(to_host(xp, codes), to_host(xp, scales))


def error_bound(values: np.ndarray, format_name: str) -> np.ndarray:
    """Largest allowed |stored - source| of each value, from the source alone.

    A code keeps four significant bits, so half its last step is 2^-4 of the value; below 2^-6 times
    the scale the step is 2^-9 of it. Rounding of the source, the scale and its reciprocal to bf16
    and binary32, and the cut at 448, add less than 2^-7.

    Args:
        values: Source values, float32 ``[N, K]``.
        format_name: Ignored; the method has one.

    Returns:
        float32 ``[N, K]``.
    """
    rounded = np.abs(values.astype(ml_dtypes.bfloat16).astype(np.float32))
    scales = rounded.max(axis=1, keepdims=True) / np.float32(448)
    bounds: np.ndarray = rounded * np.float32(2**-4 + 2**-7) + scales * np.float32(2**-10 + 2**-16)
    # Scales near the end of binary32 are rounded to multiples of 2^-133.
    return bounds + np.float32(449 * 2.0**-134)
