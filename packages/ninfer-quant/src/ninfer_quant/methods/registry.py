"""The built-in methods by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ninfer_format.nearest import did_you_mean
from ninfer_quant.errors import RecipeError
from ninfer_quant.methods import cast_direct, grouped_absmax
from ninfer_quant.methods.request import Method


@dataclass(frozen=True, slots=True)
class BuiltinMethod:
    """A method that recipes name.

    Attributes:
        name: Its name.
        plan: The method.
        error_bound: Largest allowed |stored - source| for float32 values of whole rows and a
            format; verification compares with it.
    """

    name: str
    plan: Method
    error_bound: Callable[[np.ndarray, str], np.ndarray]


METHODS: dict[str, BuiltinMethod] = {
    method.name: method
    for method in (
        BuiltinMethod("cast_direct", cast_direct.plan_cast_direct, cast_direct.error_bound),
        BuiltinMethod(
            "grouped_absmax", grouped_absmax.plan_grouped_absmax, grouped_absmax.error_bound
        ),
    )
}


def find_method(name: str) -> BuiltinMethod:
    """Look up a built-in method.

    Raises:
        RecipeError: There is none of that name.
    """
    if name not in METHODS:
        raise RecipeError(
            f"unknown method {name!r}, known are {', '.join(METHODS)}",
            hint=did_you_mean(name, METHODS),
        )
    return METHODS[name]
