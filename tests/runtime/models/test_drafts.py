"""DFlash and DFlash2: configuration, parameters, places in their checkpoints."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from math import prod
from typing import Any

import pytest

from ninfer_format import UnsupportedConfigError
from ninfer_runtime.models.qwen3_5.architecture import ARCHITECTURE

V, D = 512, 128
TEXT: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "hidden_size": D,
    "vocab_size": V,
    "num_hidden_layers": 4,
    "max_position_embeddings": 1024,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rope_parameters": {"mrope_section": [3, 3, 2]},
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}
DFLASH: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": D,
    "vocab_size": V,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 256,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e7,
    "block_size": 8,
    "dflash_config": {"target_layer_ids": [1, 3], "mask_token_id": 511},
}
SELECTOR = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 32, "selector_top_k": 8}
DFLASH2 = DFLASH | {
    "architectures": ["DFlash2DraftModel"],
    "layer_types": ["sliding_attention"] * 2,
    "dflash_config": DFLASH["dflash_config"] | SELECTOR,
}
COMPANIONS = {"dflash": DFLASH, "dflash2": DFLASH2}


def configs(component: str, **changes: Any) -> dict[str, dict[str, Any]]:
    companion = deepcopy(COMPANIONS[component]) | changes
    return ARCHITECTURE.component_configs(TEXT, ("text", component), {component: companion})


@pytest.mark.parametrize("component", COMPANIONS)
def test_a_configuration_is_normalised_to_what_can_be_parsed_again(component: str):
    normal = configs(component)
    assert "block_size" not in normal[component]
    assert normal[component]["rope_parameters"] == {"rope_theta": 1e7}
    names = [parameter.name for parameter in ARCHITECTURE.parameters(normal)]
    assert len(names) == len(set(names))
    assert ARCHITECTURE.parameters(normal)[-1].name.startswith(f"{component}/")


@pytest.mark.parametrize(
    ("component", "tensors"), [("dflash", 3 + 2 * 11), ("dflash2", 6 + 2 * 15)]
)
def test_every_parameter_has_a_tensor_of_its_size(component: str, tensors: int):
    normal = configs(component)
    views = ARCHITECTURE.source_views(normal, ())
    drafted = [p for p in ARCHITECTURE.parameters(normal) if p.residency == component]
    assert {views[p.name].tensor_shape for p in drafted} >= {(D, 2 * D), (256, D)}
    assert all(prod(views[p.name].tensor_shape) == prod(p.shape) for p in drafted)
    used = Counter(views[parameter.name].tensor for parameter in drafted)
    assert len(used) == tensors
    shared = {name for name, count in used.items() if count == 2}
    assert shared == {f"layers.{i}.self_attn.{role}_proj.weight" for i in (0, 1) for role in "kv"}


def test_dflash2_adds_convolutions_and_a_candidate_selector():
    shapes = {p.name: p.shape for p in ARCHITECTURE.parameters(configs("dflash2"))}
    assert shapes["dflash2/layers/1/mlp_conv/base_kernel"] == (2, 2, D)
    assert shapes["dflash2/layers/1/mlp_conv/kernel_projection"] == (2 * 2 * D // 16, D)
    assert shapes["dflash2/candidate_selector/hidden_projection"] == (32, D)
    assert shapes["dflash2/candidate_selector/successor_codebook"] == (V, 32)
    dflash = [p.name for p in ARCHITECTURE.parameters(configs("dflash")) if p.residency != "text"]
    assert not any("conv" in name or "selector" in name for name in dflash)


def test_the_output_head_is_used_by_the_drafter():
    inputs = {p.name: p.inputs for p in ARCHITECTURE.parameters(configs("dflash2"))}
    assert inputs["text/output_head"] == ("text/final_hidden", "dflash2/final_hidden")
    assert inputs["dflash2/layers/0/attention/context_key"] == ("dflash2/context_input",)
    assert inputs["dflash2/layers/0/attention/key"] == ("dflash2/layers/0/query_projection_input",)


def test_projections_of_a_layer_may_be_packed():
    groups = ARCHITECTURE.packing_groups(configs("dflash"))
    attention = tuple(f"dflash/layers/1/attention/{role}" for role in ("query", "key", "value"))
    assert attention in groups
    assert ("dflash/layers/1/mlp/gate", "dflash/layers/1/mlp/up") in groups


def test_layer_types_follow_from_the_window_if_they_are_absent():
    config = {name: value for name, value in DFLASH.items() if name != "layer_types"}
    sliding = config | {"use_sliding_window": True, "max_window_layers": 1}
    found = ARCHITECTURE.component_configs(TEXT, ("text", "dflash"), {"dflash": sliding})
    assert found["dflash"]["layer_types"] == ["full_attention", "sliding_attention"]
    found = ARCHITECTURE.component_configs(TEXT, ("text", "dflash"), {"dflash": config})
    assert found["dflash"]["layer_types"] == ["full_attention"] * 2
    assert "sliding_window" not in found["dflash"]


@pytest.mark.parametrize(
    ("component", "changes"),
    [
        ("dflash", {"architectures": ["DFlash2DraftModel"]}),
        ("dflash", {"hidden_size": 64}),
        ("dflash", {"vocab_size": 511}),
        ("dflash", {"num_target_layers": 5}),
        ("dflash", {"attention_bias": True}),
        ("dflash", {"is_causal": True}),
        ("dflash", {"hidden_act": "gelu"}),
        ("dflash", {"head_dim": 31}),
        ("dflash", {"num_key_value_heads": 3}),
        ("dflash", {"sliding_window": None}),
        ("dflash", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
        ("dflash", {"dflash_config": {"target_layer_ids": [1, 1], "mask_token_id": 5}}),
        ("dflash", {"dflash_config": {"target_layer_ids": [4], "mask_token_id": 5}}),
        ("dflash", {"dflash_config": {"target_layer_ids": [], "mask_token_id": 5}}),
        ("dflash", {"dflash_config": {"target_layer_ids": [1], "mask_token_id": V}}),
        ("dflash2", {"dflash_config": DFLASH["dflash_config"]}),
        ("dflash2", {"sample_from_anchor": True}),
        ("dflash2", {"output_multiplier": 2.0}),
        ("dflash2", {"final_logit_softcapping": 30.0}),
        ("dflash2", {"dflash_config": DFLASH2["dflash_config"] | {"conv_group_size": 24}}),
        ("dflash2", {"dflash_config": DFLASH2["dflash_config"] | {"selector_top_k": V + 1}}),
        ("dflash2", {"dflash_config": DFLASH2["dflash_config"] | {"input_embedding_scale": 2.0}}),
    ],
)
def test_what_would_change_the_mathematics_is_refused(component: str, changes: dict[str, Any]):
    with pytest.raises(UnsupportedConfigError) as caught:
        configs(component, **changes)
    assert caught.value.key.startswith(component)


def test_unknown_members_of_an_artifact_are_refused():
    normal = configs("dflash")
    normal["dflash"]["block_size"] = 8
    with pytest.raises(UnsupportedConfigError, match="block_size"):
        ARCHITECTURE.parameters(normal)
