"""Feed-forward layer that is a mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.layers.linear import Observe
from ninfer_runtime.ops.embedding import embedding
from ninfer_runtime.ops.linear import Weight, linear
from ninfer_runtime.ops.moe_experts import ExpertsProduct, ExpertWeights
from ninfer_runtime.ops.moe_router import Routing, moe_router
from ninfer_runtime.ops.swiglu import swiglu


@dataclass(frozen=True, slots=True)
class ExpertObservers:
    """What is shown the inputs of the projections of a layer.

    Attributes:
        layer_input: Gets what the router, the gates and the up matrices get.
        products: Each gets what the down matrix of an expert gets, for the tokens of that expert;
            nothing if it has none.
        shared_product: Gets what the down matrix of the shared expert gets.
    """

    layer_input: Observe
    products: Sequence[Observe]
    shared_product: Observe


class MixtureOfExperts:
    """``Σ_a w_a · expert_a(x) + σ(shared_score · x) · shared(x)`` over the chosen experts.

    Args:
        router: [E + 1, D]: the rows that score the experts, then the one of the shared expert.
        weights: Matrices of the experts.
        experts_per_token: How many are chosen.
        observers: Are shown the inputs of the projections.
    """

    def __init__(
        self,
        router: Tensor,
        weights: ExpertWeights,
        experts_per_token: int,
        observers: ExpertObservers | None = None,
    ) -> None:
        self.router = router
        self.weights = weights
        self.experts_per_token = experts_per_token
        self.observers = observers

    def __call__(self, x: Tensor) -> ExpertsProduct:
        """Map `x` [T, D] to [T, D], still to be computed."""
        if self.observers is not None:
            routing = moe_router(x, self.router, experts_per_token=self.experts_per_token)
            self._show(x, routing, self.observers)
        return ExpertsProduct(x, self.router, self.weights, self.experts_per_token)

    def _show(self, x: Tensor, routing: Routing, observers: ExpertObservers) -> None:
        """Compute what is inside `moe_experts` once more, expert by expert."""
        observers.layer_input(x)
        gate_up = _numbers(self.weights.gate_up)
        inner = gate_up.shape[0] // (2 * len(observers.products))
        chosen = x.device.to_host(routing.experts)
        for expert, observe in enumerate(observers.products):
            tokens = np.flatnonzero((chosen == expert).any(axis=1))
            if len(tokens):
                rows = embedding(x.device.from_host(tokens.astype(np.int32)), x)
                observe(_product(rows, gate_up[expert * 2 * inner : (expert + 1) * 2 * inner]))
        observers.shared_product(_product(x, _numbers(self.weights.shared_gate_up)))


def _product(x: Tensor, gate_up: Tensor) -> Tensor:
    y = linear(x, gate_up)
    inner = y.shape[1] // 2
    return swiglu(y[:, :inner], y[:, inner:])


def _numbers(weight: Weight) -> Tensor:
    if isinstance(weight, Tensor):
        return weight
    raise OpArgumentError(
        "moe_experts", "weights", expected="fp32 or bf16 to be observed", found=weight
    )
