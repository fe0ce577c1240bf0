"""NumPy meaning of `gated_linear`."""

from __future__ import annotations

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.gated_linear import GatedWeight
from ninfer_runtime.ops.linear import Weight
from ninfer_runtime.ops.linear.packing import TURN
from ninfer_runtime.ops.linear.reference import stacked_linear
from ninfer_runtime.ops.swiglu.reference import swiglu


def gated_linear(x: Tensor, weight: GatedWeight, out: Tensor, *, reader: Weight | None) -> None:
    """See the contract in the package."""
    T, N = out.shape
    y = x.device.empty((T, 2 * N), DType.FP32)
    stacked_linear(x, y, *weight.matrices)
    if not weight.in_turns:
        swiglu(y[:, :N], y[:, N:], out)
        return
    turns = y.reshape(T, N // TURN, 2 * TURN)
    swiglu(turns[..., :TURN], turns[..., TURN:], out.reshape(T, N // TURN, TURN))
