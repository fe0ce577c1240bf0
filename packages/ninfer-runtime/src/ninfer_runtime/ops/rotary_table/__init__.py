"""Cosines and sines of the rotary embedding for given positions."""

from __future__ import annotations

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.arguments import check_dtype, check_shape
from ninfer_runtime.ops.registry import call, register

register("rotary_table", "cpu", "ninfer_runtime.ops.rotary_table.reference:rotary_table")
register("rotary_table", "cuda", "ninfer_runtime.ops.rotary_table.cuda:rotary_table")


def rotary_table(
    positions: Tensor, *, theta: float, axes: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Compute the angles of interleaved multimodal RoPE.

    With R = len(axes) rotated pairs, ``angle[t, r] = positions[axes[r], t] · theta^(-r / R)``.
    The angle is evaluated in float64, so that far positions keep their phase; its cosine and sine
    are rounded once, to float32.

    Args:
        positions: [3, T], int32: the temporal, height and width position of each token. Text
            tokens have three equal ones.
        theta: Base of the frequencies; positive.
        axes: For each pair the position axis that it follows: 0, 1 or 2.

    Returns:
        Cosines and sines, each [T, R], fp32.

    Raises:
        OpArgumentError: A shape, dtype or axis is not as above.
    """
    check_dtype("rotary_table", "positions", positions, (DType.INT32,))
    check_shape("rotary_table", "positions", positions, (3, positions.shape[-1]))
    if not axes or not set(axes) <= {0, 1, 2}:
        raise OpArgumentError("rotary_table", "axes", expected="axes out of 0, 1, 2", found=axes)
    shape = (positions.shape[1], len(axes))
    cos = positions.device.empty(shape, DType.FP32)
    sin = positions.device.empty(shape, DType.FP32)
    call("rotary_table", positions, cos, sin, theta=theta, axes=axes)
    return cos, sin
