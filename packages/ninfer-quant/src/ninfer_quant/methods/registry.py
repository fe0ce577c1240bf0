"""The built-in methods by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ninfer_format.nearest import did_you_mean
from ninfer_quant.errors import RecipeError
from ninfer_quant.methods import (
    cast_direct,
    fp8_row_maxabs,
    grouped_absmax,
    grouped_gptq,
    grouped_mse,
    import_encoded,
    nvfp4_absmax,
    nvfp4_four_over_six,
    nvfp4_gptq,
    nvfp4_mse,
    nvfp4_ratio,
    nvfp4_words,
    q4_rows_maxabs,
)
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
        BuiltinMethod("grouped_mse", grouped_mse.plan_grouped_mse, grouped_mse.error_bound),
        BuiltinMethod("grouped_gptq", grouped_gptq.plan_grouped_gptq, grouped_gptq.error_bound),
        BuiltinMethod(
            "q4_rows_maxabs", q4_rows_maxabs.plan_q4_rows_maxabs, q4_rows_maxabs.error_bound
        ),
        BuiltinMethod(
            "fp8_row_maxabs", fp8_row_maxabs.plan_fp8_row_maxabs, fp8_row_maxabs.error_bound
        ),
        BuiltinMethod("nvfp4_absmax", nvfp4_absmax.plan_nvfp4_absmax, nvfp4_words.error_bound),
        BuiltinMethod("nvfp4_ratio", nvfp4_ratio.plan_nvfp4_ratio, nvfp4_words.error_bound),
        BuiltinMethod(
            "nvfp4_four_over_six",
            nvfp4_four_over_six.plan_nvfp4_four_over_six,
            nvfp4_words.error_bound,
        ),
        BuiltinMethod("nvfp4_mse", nvfp4_mse.plan_nvfp4_mse, nvfp4_words.error_bound),
        BuiltinMethod("nvfp4_gptq", nvfp4_gptq.plan_nvfp4_gptq, nvfp4_gptq.error_bound),
        BuiltinMethod(
            "import_encoded", import_encoded.plan_import_encoded, import_encoded.error_bound
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
