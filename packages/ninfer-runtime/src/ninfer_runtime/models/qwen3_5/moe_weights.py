"""From the values of the parameters to the mixture of experts of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_runtime.layers.moe import ExpertObservers, MixtureOfExperts
from ninfer_runtime.models.qwen3_5.config import MoeConfig
from ninfer_runtime.models.qwen3_5.moe_parameters import expert_prefix
from ninfer_runtime.ops.moe_experts import ExpertWeights

if TYPE_CHECKING:
    from ninfer_runtime.models.qwen3_5.weights import TextWeights


def mixture(moe: MoeConfig, block: str, weights: TextWeights) -> MixtureOfExperts:
    """The feed-forward part of the layer whose parameters begin with `block`.

    The experts are read one by one into their places in the banks, so that no second copy of all of
    them exists.
    """
    prefix = f"{block}moe/"
    experts = [expert_prefix(block, expert) for expert in range(moe.num_experts)]
    return MixtureOfExperts(
        router=weights.bank([f"{prefix}router", f"{prefix}shared_score"]),
        weights=ExpertWeights(
            gate_up=weights.bank([f"{name}{role}" for name in experts for role in ("gate", "up")]),
            down=weights.bank([f"{name}down" for name in experts]),
            shared_gate_up=weights.bank([f"{prefix}shared/gate", f"{prefix}shared/up"]),
            shared_down=weights.bank([f"{prefix}shared/down"]),
        ),
        experts_per_token=moe.num_experts_per_tok,
        observers=_observers(prefix, experts, weights),
    )


def _observers(prefix: str, experts: list[str], weights: TextWeights) -> ExpertObservers | None:
    layer_input = weights.observer(f"{prefix}router")
    shared_product = weights.observer(f"{prefix}shared/down")
    products = [weights.observer(f"{name}down") for name in experts]
    if layer_input is None or shared_product is None:
        return None
    return ExpertObservers(
        layer_input, [each for each in products if each is not None], shared_product
    )
