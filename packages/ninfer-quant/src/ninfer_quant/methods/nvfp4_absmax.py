"""``nvfp4_absmax``: scales of blocks from their maxima, as `ninfer_format.nvfp4_absmax`."""

from __future__ import annotations

from ninfer_quant.encoders.nvfp4 import ABSMAX_RANGE, encode_ties_down
from ninfer_quant.methods.nvfp4_words import plan_encoded
from ninfer_quant.methods.request import MethodJob, MethodRequest

NAME = "nvfp4_absmax"


def plan_nvfp4_absmax(request: MethodRequest) -> MethodJob:
    """Fill an nvfp4 object bit for bit as the format specification, section 8.4, says.

    Raises:
        RecipeError: The target is no nvfp4 matrix, or parameters were given.
    """
    request.refuse_parameters()
    return plan_encoded(NAME, request, ABSMAX_RANGE, encode_ties_down)
