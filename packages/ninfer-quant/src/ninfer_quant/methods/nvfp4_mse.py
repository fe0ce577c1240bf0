"""``nvfp4_mse``: the best of all scales of a block, by squared error.

With the parameter ``{"weighting": "diag", "calibration": "FILE"}`` the squared errors are weighted
by the mean squares of the inputs that they are multiplied with.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ninfer_quant.array_module import Array
from ninfer_quant.encoders.nvfp4 import ABSMAX_RANGE, best_of_all, codes_under, search_scales
from ninfer_quant.errors import RecipeError
from ninfer_quant.methods.calibrated_input import CALIBRATION, calibrated_input
from ninfer_quant.methods.nvfp4_words import plan_encoded
from ninfer_quant.methods.request import MethodJob, MethodRequest

NAME = "nvfp4_mse"
WEIGHTING = "weighting"
WEIGHTINGS = ("none", "diag")


def plan_nvfp4_mse(request: MethodRequest) -> MethodJob:
    """Fill an nvfp4 object; see `best_of_all`.

    Raises:
        RecipeError: The target is no nvfp4 matrix, or the parameters are wrong.
        CheckpointError: The calibration does not know the input of the object.
    """
    request.refuse_parameters(WEIGHTING, CALIBRATION)
    weights = _weights(request)

    def encode(xp: Any, x: Array) -> tuple[Array, Array]:
        there = None if weights is None else xp.asarray(weights)
        scales = search_scales(xp, x, best_of_all, there)
        return codes_under(xp, x, scales), scales

    return plan_encoded(NAME, request, ABSMAX_RANGE, encode)


def _weights(request: MethodRequest) -> np.ndarray | None:
    weighting = request.parameters.get(WEIGHTING, "none")
    if weighting not in WEIGHTINGS:
        raise RecipeError(f"{WEIGHTING} {weighting!r} is not one of {', '.join(WEIGHTINGS)}")
    if weighting == "none":
        if CALIBRATION in request.parameters:
            raise RecipeError(f"{CALIBRATION} is for {WEIGHTING} diag")
        return None
    moments = calibrated_input(NAME, request).second_moment()
    # A column that no input used must not choose its scale by chance.
    used = moments[moments > 0]
    moments[moments == 0] = used.min() if used.size else 1
    return moments
