"""A residual sum and the norm of it, as between two parts of a block."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape, product_input
from ninfer_runtime.ops.linear import Product
from ninfer_runtime.ops.moe_experts import ExpertsProduct, check_weights
from ninfer_runtime.ops.moe_router import check_router
from ninfer_runtime.ops.product_input import ProductInput
from ninfer_runtime.ops.registry import call, register

register("add_rms_norm", "cpu", "ninfer_runtime.ops.add_rms_norm.reference:add_rms_norm")
register("add_rms_norm", "cuda", "ninfer_runtime.ops.add_rms_norm.cuda:add_rms_norm")
register("add_product", "cpu", "ninfer_runtime.ops.add_rms_norm.reference:add_product")
register("add_product", "cuda", "ninfer_runtime.ops.add_rms_norm.cuda:add_product")
register("add_experts", "cpu", "ninfer_runtime.ops.add_rms_norm.reference:add_experts")
register("add_experts", "cuda", "ninfer_runtime.ops.add_rms_norm.cuda:add_experts")


def add_rms_norm(
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    *,
    eps: float,
    unit_offset: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Add `y` to `x` in place, then normalise each row of the sum.

    ``x ← x + y``, rounded once to the dtype of `x`; the result is
    ``x / sqrt(mean(x²) + eps) · w`` of the rounded sum, with w = weight or 1 + weight, evaluated in
    float32 and rounded once to the dtype of the result.

    Args:
        x: [T, D], fp32 or bf16; holds the sum afterwards.
        y: [T, D], fp32 or bf16.
        weight: [D], fp32 or bf16.
        eps: Added to the mean of squares; positive.
        unit_offset: Multiply with 1 + weight in place of weight.
        out: [T, D], fp32 or bf16; shares no memory with `x`, may be `y`. By default a new tensor
            of the dtype of `x`, made for products (`ProductInput`).

    Raises:
        OpArgumentError: A shape or dtype is not as above.
    """
    op = "add_rms_norm"
    check_rank(op, "x", x, "T D")
    for argument, tensor in (("x", x), ("y", y), ("weight", weight)):
        check_dtype(op, argument, tensor)
    check_shape(op, "y", y, x.shape)
    check_shape(op, "weight", weight, x.shape[-1:])
    out = product_input(op, out, x)
    if isinstance(x, ProductInput):
        x.forget()
    call(op, x, y, weight, out, eps=eps, unit_offset=unit_offset)
    return out


def add_product_rms_norm(
    x: Tensor,
    y: Product | ExpertsProduct,
    weight: Tensor,
    *,
    eps: float,
    unit_offset: bool = False,
) -> ProductInput:
    """`add_rms_norm` of a product, for results that nothing but products take.

    On a GPU the elements of the result may be undefined: it then holds the sum times w, rounded to
    bf16 and, divided by 64, to binary16, and the squares of the sum. What `linear`, `moe_router`
    and `moe_experts` make of it is ``1 / sqrt(mean(x²) + eps)`` times their products with those. A sum times w of 2^22 or more becomes
    infinite and shows.

    Args:
        x: [T, D], fp32 or bf16; holds the sum with the product afterwards, which is not rounded before.
        y: A product [T, D], or what experts make of rows.
        weight: [D], fp32 or bf16.
        eps: Added to the mean of squares; positive.
        unit_offset: Multiply with 1 + weight in place of weight.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
        UnsupportedOpError: As for `linear`, `moe_router` and `moe_experts`.
    """
    op = "add_product" if isinstance(y, Product) else "add_experts"
    check_rank(op, "x", x, "T D")
    for argument, tensor in (("x", x), ("y", y.x), ("weight", weight)):
        check_dtype(op, argument, tensor)
    check_shape(op, "y", y, x.shape)
    check_shape(op, "weight", weight, x.shape[-1:])
    out = ProductInput.empty(x.device, x.shape, x.dtype)
    if isinstance(x, ProductInput):
        x.forget()
    if isinstance(y, Product):
        call(op, x, y.x, y.weight, weight, out, eps=eps, unit_offset=unit_offset)
        return out
    check_weights(op, y.weights, x.shape[1])
    check_router(op, y.x, y.router, y.experts_per_token)
    call(
        op,
        x,
        y.x,
        y.router,
        *y.weights.all,
        weight,
        out,
        experts_per_token=y.experts_per_token,
        eps=eps,
        unit_offset=unit_offset,
    )
    return out
