"""``cast_direct``: values to the words of a direct format."""

from __future__ import annotations

import numpy as np

from ninfer_format import cast_direct, get_format
from ninfer_format.dtypes import DirectFormat
from ninfer_quant.errors import RecipeError
from ninfer_quant.methods.request import MethodJob, MethodRequest, ObjectOutput


def plan_cast_direct(request: MethodRequest) -> MethodJob:
    """Fill an object of a direct format; bf16 rounds to nearest, ties to even.

    Raises:
        RecipeError: The target's format is not a direct one, or parameters were given.
    """
    request.refuse_parameters()
    target = request.target
    if not isinstance(get_format(target.format), DirectFormat):
        raise RecipeError(
            f"method cast_direct writes direct formats, not {target.format}",
            hint="give assign() a method too, for example grouped_absmax",
        )

    def produce(output: ObjectOutput) -> None:
        _, K = target.matrix_shape
        for first, last in request.chunks():
            values = request.values(first * K, last * K)
            with request.encoding(first):
                words = cast_direct(values, target.format)
            output.write_values(first * K, words)

    return MethodJob(produce)


def error_bound(values: np.ndarray, format_name: str) -> np.ndarray:
    """Largest allowed |stored - source| of each value: exactly what rounding to the format does.

    Args:
        values: Source values of any shape, float32; float64 for int32.
        format_name: A direct format.

    Returns:
        Bounds of the same shape; zero wherever the format holds the value.
    """
    stored = values
    if format_name == "bf16":
        stored = (cast_direct(values, format_name).astype(np.uint32) << 16).view(np.float32)
    elif format_name == "int32":
        stored = np.trunc(values)
    bounds: np.ndarray = np.abs(stored - values)
    return bounds
