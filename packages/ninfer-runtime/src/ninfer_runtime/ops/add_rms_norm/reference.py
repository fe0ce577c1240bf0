"""NumPy meaning of `add_rms_norm`."""

from __future__ import annotations

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.add.reference import add
from ninfer_runtime.ops.linear import Weight
from ninfer_runtime.ops.linear.reference import linear
from ninfer_runtime.ops.moe_experts.reference import moe_experts
from ninfer_runtime.ops.moe_router import new_routing
from ninfer_runtime.ops.moe_router.reference import moe_router
from ninfer_runtime.ops.rms_norm.reference import rms_norm


def add_rms_norm(
    x: Tensor, y: Tensor, weight: Tensor, out: Tensor, *, eps: float, unit_offset: bool
) -> None:
    """See the contract in the package."""
    add(x, y, x)
    rms_norm(x, weight, out, eps=eps, unit_offset=unit_offset)


def add_product(
    x: Tensor,
    rows: Tensor,
    matrix: Weight,
    weight: Tensor,
    out: Tensor,
    *,
    eps: float,
    unit_offset: bool,
) -> None:
    """See the contract of `add_product_rms_norm` in the package."""
    y = x.device.empty(x.shape, DType.FP32)
    linear(rows, matrix, y)
    add_rms_norm(x, y, weight, out, eps=eps, unit_offset=unit_offset)


def add_experts(
    x: Tensor,
    rows: Tensor,
    router: Tensor,
    gate_up: Weight,
    down: Weight,
    shared_gate_up: Weight,
    shared_down: Weight,
    weight: Tensor,
    out: Tensor,
    *,
    experts_per_token: int,
    eps: float,
    unit_offset: bool,
) -> None:
    """See the contract of `add_product_rms_norm` in the package."""
    routing = new_routing(rows, experts_per_token)
    chosen = routing.experts, routing.weights, routing.shared_weights
    moe_router(rows, router, *chosen)
    y = x.device.empty(x.shape, DType.FP32)
    moe_experts(rows, *chosen, gate_up, down, shared_gate_up, shared_down, y)
    add_rms_norm(x, y, weight, out, eps=eps, unit_offset=unit_offset)
