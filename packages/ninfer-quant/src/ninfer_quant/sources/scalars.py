"""Global scales of quantizers: one number that a whole matrix or an activation is scaled by."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ninfer_format import SafetensorsCheckpoint
from ninfer_format.errors import CheckpointError

LARGEST_NVFP4 = 6 * 448
"""The largest code times the largest block scale."""

LARGEST_VALUE = {"weight": 6.0 * 448, "activation": 2.0**20}
"""No weight and no activation of a language model is larger; what a scale implies must not be."""

Kind = Literal["weight", "activation"]


def read_scalar(checkpoint: SafetensorsCheckpoint, name: str) -> np.float32:
    """Read the F32 tensor of one element that is called `name`.

    Raises:
        CheckpointError: It has another type or size, or is not finite and above zero.
    """
    info = checkpoint.info(name)
    if info.dtype != "F32" or info.elements != 1:
        raise CheckpointError(
            f"tensor {name!r} of type {info.dtype} and shape {list(info.shape)} is no global scale "
            "(expected one F32 element)",
            path=info.file,
            tensors=(name,),
        )
    value = np.float32(checkpoint.read(name)[0])
    if not np.isfinite(value) or value <= 0:
        raise CheckpointError(
            f"global scale {name!r} is {value} (expected a finite number above 0)",
            path=info.file,
            tensors=(name,),
        )
    return value


def divisor_of_divisor(checkpoint: SafetensorsCheckpoint, name: str, kind: Kind) -> np.float32:
    """The divisor that a tensor holds as such, as compressed-tensors writes it.

    Raises:
        CheckpointError: It is no scale, or so small that it must be a multiplier.
    """
    divisor = read_scalar(checkpoint, name)
    _check_magnitude(checkpoint, name, kind, divisor, stored="a divisor", other="a multiplier")
    return divisor


def divisor_of_multiplier(checkpoint: SafetensorsCheckpoint, name: str, kind: Kind) -> np.float32:
    """The divisor that is the reciprocal of a multiplier, as ModelOpt writes it.

    Raises:
        CheckpointError: It is no scale, or so large that it must be a divisor.
    """
    multiplier = read_scalar(checkpoint, name)
    with np.errstate(over="ignore"):
        divisor = np.float32(1) / multiplier
    if not np.isfinite(divisor):
        raise CheckpointError(
            f"global scale {name!r} is {multiplier}, whose reciprocal is no binary32 number",
            path=checkpoint.info(name).file,
            tensors=(name,),
        )
    _check_magnitude(checkpoint, name, kind, divisor, stored="a multiplier", other="a divisor")
    return divisor


def _check_magnitude(
    checkpoint: SafetensorsCheckpoint,
    name: str,
    kind: Kind,
    divisor: np.float32,
    *,
    stored: str,
    other: str,
) -> None:
    """Refuse a scale whose reading by the schema gives values that no model has."""
    largest = LARGEST_NVFP4 / float(divisor)
    if largest <= LARGEST_VALUE[kind]:
        return
    value = float(checkpoint.read(name)[0])
    raise CheckpointError(
        f"global scale {name!r} is {stored} by its name, but {value:.6g} would then allow "
        f"{kind}s of up to {largest:.3g}; as {other} it would be plausible",
        path=checkpoint.info(name).file,
        tensors=(name,),
        hint="the quantizer that wrote it has mixed up the conventions; write the reciprocal",
    )
