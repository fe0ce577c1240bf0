"""``nvfp4_four_over_six``: the maximum of a block becomes 6 or 4, whichever fits better."""

from __future__ import annotations

from ninfer_quant.encoders.nvfp4 import FOUR_OVER_SIX_RANGE, best_of_four_and_six
from ninfer_quant.methods.nvfp4_words import plan_searched
from ninfer_quant.methods.request import MethodJob, MethodRequest

NAME = "nvfp4_four_over_six"


def plan_nvfp4_four_over_six(request: MethodRequest) -> MethodJob:
    """Fill an nvfp4 object; see `best_of_four_and_six`.

    Raises:
        RecipeError: The target is no nvfp4 matrix, or parameters were given.
    """
    return plan_searched(NAME, request, FOUR_OVER_SIX_RANGE, best_of_four_and_six)
