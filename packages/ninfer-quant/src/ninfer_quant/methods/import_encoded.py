"""``import_encoded``: the words of matrices that are quantized already, copied unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ninfer_quant.errors import RecipeError
from ninfer_quant.methods.request import (
    AuxiliaryKey,
    MethodInput,
    MethodJob,
    MethodRequest,
    ObjectOutput,
)
from ninfer_quant.sources.encoded import EncodedSource
from ninfer_quant.sources.words import MatrixWords, joined_rows

if TYPE_CHECKING:
    from ninfer_quant.recipes.selection import AuxiliaryValue

ACTIVATION_INPUT_DIVISOR = "activation_input_divisor"


def plan_import_encoded(request: MethodRequest) -> MethodJob:
    """Fill a matrix with the words of its sources, which are in the target's format already.

    Uses that permit A4 get an ``activation_input_divisor``: the recipe's own, else the smallest of
    all the sources of the object, because operations that run as one quantize their input once.

    Raises:
        RecipeError: A source is not encoded in the target's format, parameters were given, or a
            use permits A4 and there is no divisor for it.
    """
    request.refuse_parameters()
    if len(request.target.shape) != 2:
        raise RecipeError(
            f"method import_encoded writes matrices, not shape {list(request.target.shape)}"
        )
    encoded = [_encoded(part, request.target.format) for part in request.inputs]

    def produce(output: ObjectOutput) -> None:
        for first, last in request.chunks():
            with request.encoding(first):
                output.write_rows(first, _words(encoded, first, last))

    return MethodJob(produce, _activation_divisors(request, encoded))


def error_bound(values: np.ndarray, format_name: str) -> np.ndarray:
    """Largest allowed |stored - source| of each value: nothing, because words are copied.

    Args:
        values: Source values of any shape.
        format_name: Any format.

    Returns:
        Zeros of the same shape.
    """
    return np.zeros_like(values)


def _encoded(part: MethodInput, format_name: str) -> EncodedSource:
    encoded = part.source.encoded
    if encoded is None:
        raise RecipeError(
            f"method import_encoded needs words of {format_name}, but {part.source.label} of "
            f"{part.parameter} has only values"
        )
    if encoded.format != format_name:
        raise RecipeError(
            f"method import_encoded copies words, but {encoded.label} of {part.parameter} is "
            f"{encoded.format}, not {format_name}"
        )
    return encoded


def _words(encoded: list[EncodedSource], first: int, last: int) -> MatrixWords:
    """The words of rows [first, last) of the sources below each other."""
    blocks = []
    begin = 0
    for source in encoded:
        low, high = max(first - begin, 0), min(last - begin, source.shape[0])
        if low < high:
            blocks.append(source.read_rows(low, high))
        begin += source.shape[0]
    return joined_rows(blocks)


def _activation_divisors(
    request: MethodRequest, encoded: list[EncodedSource]
) -> Mapping[AuxiliaryKey, AuxiliaryValue]:
    # Recipes know the methods by name, so this module cannot know recipes while it is imported.
    from ninfer_quant.recipes.selection import AuxiliaryValue

    uses = [
        (part.parameter, use, ACTIVATION_INPUT_DIVISOR)
        for part in request.inputs
        for use, policy in part.uses.items()
        if policy == "AllowA4"
    ]
    wanted = [use for use in uses if use not in request.auxiliary_overrides]
    if not wanted:
        return {}
    known: list[np.float32] = []
    for source in encoded:
        divisor = source.input_divisor()
        if divisor is None:
            raise RecipeError(
                f"AllowA4 needs an {ACTIVATION_INPUT_DIVISOR}, and {source.label} has no "
                "calibrated one",
                hint="give use() one, or choose another activation policy",
            )
        known.append(divisor)
    smallest = AuxiliaryValue(np.array(min(known), np.float32))
    return dict.fromkeys(wanted, smallest)
