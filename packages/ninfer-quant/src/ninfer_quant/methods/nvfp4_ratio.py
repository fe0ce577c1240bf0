"""``nvfp4_ratio``: the best of eleven scales of a block, max/6 times 1, 0.95, … 0.5."""

from __future__ import annotations

from ninfer_quant.encoders.nvfp4 import ABSMAX_RANGE, best_ratio
from ninfer_quant.methods.nvfp4_words import plan_searched
from ninfer_quant.methods.request import MethodJob, MethodRequest

NAME = "nvfp4_ratio"


def plan_nvfp4_ratio(request: MethodRequest) -> MethodJob:
    """Fill an nvfp4 object; see `best_ratio`.

    Raises:
        RecipeError: The target is no nvfp4 matrix, or parameters were given.
    """
    return plan_searched(NAME, request, ABSMAX_RANGE, best_ratio)
