"""Choice of the experts that each token runs through."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape
from ninfer_runtime.ops.registry import call, register

register("moe_router", "cpu", "ninfer_runtime.ops.moe_router.reference:moe_router")
register("moe_router", "cuda", "ninfer_runtime.ops.moe_router.cuda:moe_router")


@dataclass(frozen=True, slots=True)
class Routing:
    """Which experts T tokens run through, and what the results count.

    Attributes:
        experts: [T, A], int32: different experts, the one that counts most first.
        weights: [T, A], fp32: what each counts; a row's sum is 1.
        shared_weights: [T], fp32: what the expert counts that all tokens share, in 0..1.
    """

    experts: Tensor
    weights: Tensor
    shared_weights: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, in the order of the attributes."""
        return self.experts, self.weights, self.shared_weights


def moe_router(
    x: Tensor, weight: Tensor, *, experts_per_token: int, out: Routing | None = None
) -> Routing:
    """Choose the experts of each token by the largest of ``x · weightᵀ``.

    The products are summed in float32 and not rounded. The last one is the shared expert's and gives
    its weight, ``σ(score)``. The others compete: the A largest are chosen, the lower expert of two
    equal ones first, and weighted with the softmax over the chosen ones, which is the softmax over
    all of them divided by the sum of the chosen. A token with a product that is not a number has
    weights that are none.

    Args:
        x: [T, D], fp32 or bf16, possibly strided; or what `add_product_rms_norm` returns, whose norm
            is then finished after the choice, that it does not change.
        weight: [E + 1, D], fp32 or bf16: the rows of the E experts, then the shared expert's.
        experts_per_token: A, 1..E.
        out: Where the result goes. By default new tensors.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
    """
    op, A = "moe_router", experts_per_token
    check_router(op, x, weight, A)
    if out is None:
        out = new_routing(x, A)
    check_routing(op, out, x.shape[0], A)
    call(op, x, weight, *out.tensors)
    return out


def check_router(op: str, x: Tensor, weight: Tensor, experts_per_token: int) -> None:
    """Refuse rows and weights that do not fit together, or another number of experts than they have."""
    check_rank(op, "x", x, "T D")
    check_dtype(op, "x", x)
    check_rank(op, "weight", weight, "E+1 D")
    check_dtype(op, "weight", weight)
    E = weight.shape[0] - 1
    check_shape(op, "weight", weight, (E + 1, x.shape[1]))
    if not 1 <= experts_per_token <= E:
        raise OpArgumentError(op, "experts_per_token", expected=f"1..{E}", found=experts_per_token)


def new_routing(x: Tensor, experts_per_token: int) -> Routing:
    """A routing of the rows of `x` that is still to be written."""
    T, A = x.shape[0], experts_per_token
    return Routing(
        x.device.empty((T, A), DType.INT32),
        x.device.empty((T, A), DType.FP32),
        x.device.empty((T,), DType.FP32),
    )


def check_routing(op: str, routing: Routing, T: int, A: int) -> None:
    """Refuse a routing of other shapes or dtypes than those of T tokens and A experts each."""
    check_shape(op, "experts", routing.experts, (T, A))
    check_dtype(op, "experts", routing.experts, (DType.INT32,))
    check_shape(op, "weights", routing.weights, (T, A))
    check_dtype(op, "weights", routing.weights, (DType.FP32,))
    check_shape(op, "shared_weights", routing.shared_weights, (T,))
    check_dtype(op, "shared_weights", routing.shared_weights, (DType.FP32,))
