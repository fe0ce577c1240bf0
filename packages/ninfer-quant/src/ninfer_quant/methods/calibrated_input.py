"""The calibration of the input that an object is multiplied with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ninfer_quant.calibration.records import CalibrationFile
from ninfer_quant.errors import RecipeError
from ninfer_quant.methods.request import MethodRequest

CALIBRATION = "calibration"
"""Method parameter: path of a calibration file."""


@dataclass(frozen=True, slots=True)
class CalibratedInput:
    """One input of a calibration.

    Attributes:
        file: The calibration.
        name: The input.
        width: Its width K.
    """

    file: CalibrationFile
    name: str
    width: int

    def second_moment(self) -> np.ndarray:
        """Mean squares, float32 ``[K]``."""
        return self.file.second_moment(self.name, self.width)

    def hessian(self) -> np.ndarray:
        """Mean of a·aᵀ, float32 ``[K, K]``."""
        return self.file.hessian(self.name, self.width)


def calibrated_input(method: str, request: MethodRequest) -> CalibratedInput:
    """Find what is known of the input of an object.

    A parameter that is used with several inputs is looked at with the first that was calibrated.

    Raises:
        RecipeError: The method was told no calibration, or the parameters of the object have
            different inputs.
        CheckpointError: The calibration is damaged, or does not know the input.
    """
    path = request.parameters.get(CALIBRATION)
    if not isinstance(path, str):
        raise RecipeError(
            f"method {method} needs the parameter {CALIBRATION}, the path of a file",
            hint="make one with ninfer-quant calibrate",
        )
    first, *others = (tuple(part.uses) for part in request.inputs)
    if not first or any(uses != first for uses in others):
        raise RecipeError(
            f"method {method} needs parameters with one and the same input",
            hint="separate() them, or choose another method",
        )
    file = CalibrationFile(Path(path).expanduser())
    known = [name for name in first if name in file.inputs]
    return CalibratedInput(file, known[0] if known else first[0], request.target.matrix_shape[1])
