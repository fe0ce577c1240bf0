"""Feed-forward layer of experts, of which each token runs through a few."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape, output
from ninfer_runtime.ops.linear import Weight
from ninfer_runtime.ops.moe_router import Routing, check_routing, moe_router
from ninfer_runtime.ops.registry import call, register

OP = "moe_experts"
register(OP, "cpu", "ninfer_runtime.ops.moe_experts.reference:moe_experts")
register(OP, "cuda", "ninfer_runtime.ops.moe_experts.cuda:moe_experts")


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """The matrices of a layer; those of the E experts lie one below the other in banks.

    Attributes:
        gate_up: [E·2·I, D], fp32, bf16 or packed: for each expert the I rows of its gate, then those
            of its up matrix.
        down: [E·D, I], fp32, bf16 or packed: D rows for each expert.
        shared_gate_up: [2·S, D], fp32, bf16 or packed: the same of the expert that all tokens share.
        shared_down: [D, S], fp32, bf16 or packed.
    """

    gate_up: Weight
    down: Weight
    shared_gate_up: Weight
    shared_down: Weight

    @property
    def all(self) -> tuple[Weight, ...]:
        """All of them, in the order of the attributes."""
        return self.gate_up, self.down, self.shared_gate_up, self.shared_down


@dataclass(frozen=True, slots=True)
class ExpertsProduct:
    """What a layer would return: the op that takes it computes it, and what follows from it.

    Attributes:
        x: [T, D].
        router: [E + 1, D], as for `moe_router`.
        weights: The matrices.
        experts_per_token: A.
    """

    x: Tensor
    router: Tensor
    weights: ExpertWeights
    experts_per_token: int

    @property
    def shape(self) -> tuple[int, int]:
        """T and D."""
        return self.x.shape[0], self.x.shape[1]

    def compute(self) -> Tensor:
        """The tensor [T, D]."""
        routing = moe_router(self.x, self.router, experts_per_token=self.experts_per_token)
        return moe_experts(self.x, routing, self.weights)


def moe_experts(
    x: Tensor, routing: Routing, weights: ExpertWeights, *, out: Tensor | None = None
) -> Tensor:
    """Add up what the chosen experts and the shared one make of each token.

    ``y[t] = Σ_a w[t, a] · expert(e[t, a], x[t]) + w_shared[t] · shared(x[t])`` with
    ``expert(e, x) = down_e(silu(gate_e · x) · (up_e · x))``, in float32, summed in the order of a,
    the shared expert last, and rounded once. A packed weight is multiplied as in `linear`; the
    products that its `down` gets may then be rounded to binary16 as an `x` of `linear` may be. What
    a token gets depends on no other token but for the rounding of sums.

    Args:
        x: [T, D], fp32 or bf16, possibly strided; or what `add_product_rms_norm` returns.
        routing: Of the T tokens; its experts are in 0..E-1. A caller that does not have it from
            `moe_router` checks before: an expert outside is undefined.
        weights: The matrices.
        out: [T, D], fp32 or bf16; shares no memory with `x`. By default a new tensor of the dtype
            of `x`.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
        UnsupportedOpError: The device has no kernel for these formats or dtypes.
    """
    check_rank(OP, "x", x, "T D")
    check_dtype(OP, "x", x)
    check_rank(OP, "experts", routing.experts, "T A")
    T, D = x.shape
    check_routing(OP, routing, T, routing.experts.shape[1])
    check_weights(OP, weights, D)
    out = output(OP, out, x)
    call(OP, x, *routing.tensors, *weights.all, out)
    return out


def check_weights(op: str, weights: ExpertWeights, D: int) -> None:
    """Refuse matrices that do not fit together, or rows of D values."""
    for name, weight in zip(weights.__dataclass_fields__, weights.all, strict=True):
        if isinstance(weight, Tensor):
            check_rank(op, name, weight, "N K")
            check_dtype(op, name, weight)
    rows, inner = weights.down.shape
    if rows % D:
        raise OpArgumentError(op, "down", expected=f"a multiple of {D} rows", found=rows)
    check_shape(op, "gate_up", weights.gate_up, (rows // D * 2 * inner, D))
    shared = weights.shared_down.shape[1]
    check_shape(op, "shared_down", weights.shared_down, (D, shared))
    check_shape(op, "shared_gate_up", weights.shared_gate_up, (2 * shared, D))
