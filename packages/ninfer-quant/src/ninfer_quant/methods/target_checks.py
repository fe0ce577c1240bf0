"""Checks of a request that several methods make before anything is read."""

from __future__ import annotations

from ninfer_format import get_format
from ninfer_format.dtypes import NVFP4, GroupedFormat
from ninfer_quant.errors import RecipeError
from ninfer_quant.methods.request import MethodRequest


def require_matrix(method: str, request: MethodRequest) -> None:
    """Raise `RecipeError` unless the object is one matrix ``[N, K]``."""
    target = request.target
    if len(target.shape) != 2:
        raise RecipeError(f"method {method} writes matrices, not shape {list(target.shape)}")
    if target.divisors != 1:
        raise RecipeError(f"method {method} writes one matrix, not a stack of {target.divisors}")


def require_format(method: str, request: MethodRequest, format_name: str) -> None:
    """Raise `RecipeError` unless the object is a matrix of this format."""
    if request.target.format != format_name:
        raise RecipeError(f"method {method} writes {format_name}, not {request.target.format}")
    require_matrix(method, request)


def require_grouped(method: str, request: MethodRequest) -> GroupedFormat:
    """The grouped integer format of the object, which must be a matrix of such a format.

    Raises:
        RecipeError: It is not.
    """
    format_ = grouped_format(method, request.target.format)
    require_matrix(method, request)
    return format_


def grouped_format(method: str, name: str) -> GroupedFormat:
    """Look up a grouped integer format whose groups lie in padded rows.

    Raises:
        RecipeError: It is none.
    """
    format_ = get_format(name)
    # The rows of the embedding tables' format are written by a method of their own.
    if not isinstance(format_, GroupedFormat) or name == "q4_g32_fp16_rows":
        raise RecipeError(f"method {method} writes grouped integer formats, not {name}")
    return format_


def require_nvfp4(method: str, request: MethodRequest) -> None:
    """Raise `RecipeError` unless the object is an nvfp4 matrix whose shape its layout stores."""
    require_format(method, request, NVFP4.name)
    N, K = request.target.shape
    if N % 128 or K % 64:
        raise RecipeError(
            f"nvfp4 stores multiples of 128 rows and 64 columns, not {N} x {K}",
            hint="choose another format for this parameter",
        )
