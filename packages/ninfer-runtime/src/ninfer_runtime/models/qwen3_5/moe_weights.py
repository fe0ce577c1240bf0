"""From the weights in a store to the mixture of experts of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_runtime.layers.moe import ExpertObservers, MixtureOfExperts
from ninfer_runtime.models.qwen3_5.config import MoeConfig
from ninfer_runtime.models.qwen3_5.moe_parameters import expert_prefix
from ninfer_runtime.ops.moe_experts import ExpertWeights

if TYPE_CHECKING:
    from ninfer_runtime.models.qwen3_5.weights import TextLayers


def mixture(moe: MoeConfig, block: str, layers: TextLayers) -> MixtureOfExperts:
    """The feed-forward part of the layer whose parameters begin with `block`."""
    prefix, bank = f"{block}moe/", layers.store.bank
    experts = [expert_prefix(block, expert) for expert in range(moe.num_experts)]
    return MixtureOfExperts(
        router=layers.store.tensor(f"{prefix}router", f"{prefix}shared_score"),
        weights=ExpertWeights(
            gate_up=bank([f"{name}{role}" for name in experts for role in ("gate", "up")]),
            down=bank([f"{name}down" for name in experts]),
            shared_gate_up=bank([f"{prefix}shared/gate", f"{prefix}shared/up"]),
            shared_down=bank([f"{prefix}shared/down"]),
        ),
        experts_per_token=moe.num_experts_per_tok,
        observers=_observers(prefix, experts, layers),
    )


def _observers(prefix: str, experts: list[str], layers: TextLayers) -> ExpertObservers | None:
    layer_input = layers.observer(f"{prefix}router")
    shared_product = layers.observer(f"{prefix}shared/down")
    products = [layers.observer(f"{name}down") for name in experts]
    if layer_input is None or shared_product is None:
        return None
    return ExpertObservers(
        layer_input, [each for each in products if each is not None], shared_product
    )
