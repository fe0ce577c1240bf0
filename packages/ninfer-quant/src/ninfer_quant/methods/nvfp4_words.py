"""What the methods of nvfp4 share: one divisor for the whole object, then its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ninfer_format import Nvfp4Words
from ninfer_format.dtypes import NVFP4
from ninfer_format.encoders.sources import check_floating_matrix, row_blocks
from ninfer_format.errors import ArtifactError
from ninfer_quant.array_module import Array, is_numpy, to_binary32, to_host
from ninfer_quant.encoders.nvfp4 import (
    ScaleSearch,
    codes_under,
    divisor_of,
    search_scales,
)
from ninfer_quant.errors import RecipeError
from ninfer_quant.methods.chunk_values import chunk_values
from ninfer_quant.methods.request import MethodJob, MethodRequest, ObjectOutput
from ninfer_quant.methods.target_checks import require_nvfp4

Encode = Callable[[Any, Array], tuple[Array, Array]]
"""From the array module and values times divisor (which may be destroyed) to codes and scales."""


def plan_searched(
    name: str, request: MethodRequest, full_range: np.float32, search: ScaleSearch
) -> MethodJob:
    """Fill an nvfp4 object with scales that a search finds.

    Args:
        name: The method.
        request: The object.
        full_range: What its largest magnitude becomes.
        search: How the scales of blocks are chosen.

    Raises:
        RecipeError: The target is no nvfp4 matrix, or parameters were given.
    """
    request.refuse_parameters()

    def encode(xp: Any, x: Array) -> tuple[Array, Array]:
        scales = search_scales(xp, x, search)
        return codes_under(xp, x, scales), scales

    return plan_encoded(name, request, full_range, encode)


def plan_encoded(
    name: str, request: MethodRequest, full_range: np.float32, encode: Encode
) -> MethodJob:
    """Fill an nvfp4 object in two passes: its largest magnitude, then its rows.

    Args:
        name: The method.
        request: The object.
        full_range: What its largest magnitude becomes.
        encode: How rows become words.

    Raises:
        RecipeError: The target is no nvfp4 matrix.
    """
    require_nvfp4(name, request)

    def produce(output: ObjectOutput) -> None:
        divisor = object_divisor(request, output, full_range)
        for first, last in request.chunks():
            with request.encoding(first):
                xp, x = chunk_values(request, first, last)
                codes, scales = _in_blocks(xp, x, divisor, encode)
            output.write_rows(first, nvfp4_words(xp, codes, scales, divisor))

    return MethodJob(produce)


def nvfp4_words(xp: Any, codes: Array, scales: Array, divisor: np.float32) -> Nvfp4Words:
    """Words on the host."""
    divisors = np.array([divisor], np.float32).view(np.uint32)
    return Nvfp4Words(to_host(xp, codes), to_host(xp, scales), divisors)


def object_divisor(
    request: MethodRequest, output: ObjectOutput, full_range: np.float32
) -> np.float32:
    """The divisor of all rows of an object, from one pass over its values.

    Raises:
        ConversionError: The values are so small that it is not finite.
    """
    largest = np.float32(0)
    for first, last in request.chunks():
        with request.encoding(first):
            largest = max(largest, largest_magnitude(request.matrix(first, last)))
        output.keep_alive()
    with request.encoding(0):
        divisor = divisor_of(largest, full_range)
        if np.isinf(divisor):
            raise ArtifactError(
                "codec",
                "source values are too small for a divisor",
                expected="a largest magnitude whose divisor is finite",
                found=largest,
            )
    return divisor


def largest_magnitude(values: np.ndarray) -> np.float32:
    """The largest magnitude of finite values ``[N, K]`` in binary32.

    Raises:
        ArtifactError: `codec`: the values are not floating, or one is beyond binary32.
    """
    check_floating_matrix(values)
    if values.dtype.name == "bfloat16":
        # Magnitudes are ordered as their words are: negative ones behind all others.
        positive = max(int(values.view(np.int16).max()), 0)
        last = int(values.view(np.uint16).max())
        word = max(positive, last - 0x8000 if last >= 0x8000 else 0)
        return np.float32(np.uint32(word << 16).view(np.float32))
    largest = max(
        np.abs(to_binary32(np, values[begin:end])).max() for begin, end in row_blocks(values)
    )
    if not np.isfinite(largest):
        raise ArtifactError("codec", "a source value is beyond binary32")
    return np.float32(largest)


def error_bound(values: np.ndarray, format_name: str) -> np.ndarray:
    """Largest allowed |stored - source| of each value, from the source alone: the value itself.

    Zero is among the numbers of every block, and a code is the one next to the value. More cannot
    be said of single rows: the scales of blocks of small values are coarse, and how small is small
    depends on the largest magnitude of the whole object.

    Args:
        values: Source values, float32 ``[N, K]``.
        format_name: ``nvfp4``.

    Returns:
        float32 ``[N, K]``.
    """
    if format_name != NVFP4.name:
        raise RecipeError(f"nvfp4 methods write nvfp4, not {format_name}")
    # Multiplying with the divisor and dividing by it round; the last step of binary32 counts too.
    bounds: np.ndarray = np.abs(values) * np.float32(1 + 2**-20) + np.float32(2.0**-148)
    return bounds


def _in_blocks(xp: Any, x: Array, divisor: np.float32, encode: Encode) -> tuple[Array, Array]:
    """Encode rows, on a CPU so few at a time that intermediate values stay in its cache."""
    if not is_numpy(xp):
        return encode(xp, x * divisor)
    codes = np.empty(x.shape, np.uint8)
    scales = np.empty((len(x), x.shape[1] // 16), np.uint8)
    for begin, end in row_blocks(x):
        codes[begin:end], scales[begin:end] = encode(xp, x[begin:end] * divisor)
    return codes, scales
