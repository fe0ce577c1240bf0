"""Mixtures of experts: configuration, parameters, banks, and both layouts of their tensors."""

from __future__ import annotations

from copy import deepcopy
from math import prod
from typing import Any

import numpy as np
import pytest

from ninfer_format import UnsupportedConfigError
from ninfer_runtime.models.qwen3_5.architecture import ARCHITECTURE

E, D, INNER, SHARED = 3, 32, 16, 24
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "text_config": {
        "hidden_size": D,
        "vocab_size": 64,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "max_position_embeddings": 64,
        "num_experts": E,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": INNER,
        "shared_expert_intermediate_size": SHARED,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "rope_parameters": {"mrope_section": [2, 0, 0]},
        "linear_num_key_heads": 1,
        "linear_key_head_dim": 4,
        "linear_num_value_heads": 2,
        "linear_value_head_dim": 6,
        "linear_conv_kernel_dim": 4,
        "mtp_num_hidden_layers": 1,
        "norm_topk_prob": True,
        "router_aux_loss_coef": 0.001,
    },
    "vision_config": {
        "model_type": "qwen3_5_moe",
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_heads": 2,
        "patch_size": 2,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 4,
    },
}
ALL = ("text", "vision", "mtp")


def configs(**changes: Any) -> dict[str, dict[str, Any]]:
    config = deepcopy(CONFIG)
    config["text_config"] |= changes
    return ARCHITECTURE.component_configs(config, ALL)


def test_components_have_the_names_of_the_variant():
    found = configs()
    assert found["text"]["architectures"] == ["Qwen3_5MoeForCausalLM"]
    assert found["text"]["model_type"] == "qwen3_5_moe_text"
    assert found["mtp"] == {"architectures": ["Qwen3_5MoeMTP"]}
    assert found["vision"]["model_type"] == "qwen3_5_moe_vision"
    assert "intermediate_size" not in found["text"]
    assert "norm_topk_prob" not in found["text"]


@pytest.mark.parametrize(
    ("component", "member", "value"),
    [
        ("text", "intermediate_size", 8),
        ("text", "num_experts", 1),
        ("text", "model_type", "qwen3_5_text"),
        ("mtp", "architectures", ["Qwen3_5MTP"]),
        ("vision", "model_type", "qwen3_5_vision"),
    ],
)
def test_an_artifact_must_not_mix_the_variants(component: str, member: str, value: Any):
    found = configs()
    found[component][member] = value
    with pytest.raises(UnsupportedConfigError):
        ARCHITECTURE.parameters(found)


@pytest.mark.parametrize(
    "change",
    [{"norm_topk_prob": False}, {"decoder_sparse_step": 2}, {"mlp_only_layers": [0]}],
)
def test_what_would_change_the_mathematics_is_refused(change: dict[str, Any]):
    with pytest.raises(UnsupportedConfigError):
        configs(**change)


def test_every_expert_has_three_matrices_and_uses_of_its_own():
    found = {p.name: p for p in ARCHITECTURE.parameters(configs())}
    for block in ("text/layers/0/", "text/layers/1/", "mtp/layers/0/"):
        moe = f"{block}moe/"
        assert found[f"{moe}router"].shape == (E, D)
        assert found[f"{moe}shared_score"].shape == (1, D)
        assert found[f"{moe}shared/down"].shape == (D, SHARED)
        assert found[f"{moe}experts/2/up"].shape == (INNER, D)
        assert found[f"{moe}experts/2/up"].inputs == (f"{block}ffn_input",)
        assert found[f"{moe}experts/2/down"].inputs == (f"{moe}experts/2/product",)
        assert found[f"{moe}shared/down"].inputs == (f"{moe}shared/product",)
    assert not any("/mlp/" in name for name in found if not name.startswith("vision/"))


def test_experts_form_banks_in_the_order_of_their_rows():
    groups = ARCHITECTURE.packing_groups(configs())
    experts = "text/layers/1/moe/experts"
    bank = tuple(f"{experts}/{expert}/{role}" for expert in range(E) for role in ("gate", "up"))
    assert bank in groups
    assert tuple(f"{experts}/{expert}/down" for expert in range(E)) in groups
    assert ("text/layers/1/moe/router", "text/layers/1/moe/shared_score") in groups
    assert ("mtp/layers/0/moe/shared/gate", "mtp/layers/0/moe/shared/up") in groups


def test_fused_and_separate_experts_give_the_same_matrices():
    prefix = "model.language_model.layers.0.mlp.experts."
    gate_up = np.arange(E * 2 * INNER * D).reshape(E, 2 * INNER, D)
    down = np.arange(E * D * INNER).reshape(E, D, INNER)
    fused = ARCHITECTURE.source_views(configs(), [f"{prefix}gate_up_proj", f"{prefix}down_proj"])
    names = [f"{prefix}{e}.{r}_proj.weight" for e in range(E) for r in ("gate", "up", "down")]
    separate = ARCHITECTURE.source_views(configs(), names)
    for expert in range(E):
        expected = {
            "gate": gate_up[expert, :INNER],
            "up": gate_up[expert, INNER:],
            "down": down[expert],
        }
        for role, matrix in expected.items():
            name = f"text/layers/0/moe/experts/{expert}/{role}"
            view = fused[name]
            tensor = down if role == "down" else gate_up
            assert view.tensor_shape == tensor.shape
            assert view.rows is not None
            ((begin, end),) = view.rows
            rows = tensor.reshape(-1, tensor.shape[-1])[begin:end]
            np.testing.assert_array_equal(rows, matrix)
            alone = separate[name]
            assert alone.tensor == f"{prefix}{expert}.{role}_proj.weight"
            assert (alone.tensor_shape, alone.rows) == (matrix.shape, None)


def test_the_layers_decide_one_by_one():
    names = ["mtp.layers.0.mlp.experts.0.gate_proj.weight"]
    views = ARCHITECTURE.source_views(configs(), names)
    assert views["mtp/layers/0/moe/experts/1/gate"].tensor.endswith("experts.1.gate_proj.weight")
    assert views["text/layers/0/moe/experts/1/gate"].tensor.endswith("experts.gate_up_proj")


def test_every_parameter_has_a_view():
    found = configs()
    views = ARCHITECTURE.source_views(found, ())
    parameters = ARCHITECTURE.parameters(found)
    assert set(views) == {p.name for p in parameters}
    for parameter in parameters:
        view = views[parameter.name]
        width = prod(view.tensor_shape[1:])
        if view.rows is not None and len(view.tensor_shape) > 1:
            width = view.tensor_shape[-1]
        rows = view.rows or ((0, view.tensor_shape[0]),)
        assert sum(end - begin for begin, end in rows) * width == prod(parameter.shape)


@pytest.mark.parametrize("prefix", ["model.language_model.", "model."])
def test_a_checkpoint_of_experts_alone_tells_its_prefix(prefix: str):
    names = [f"{prefix}layers.1.mlp.experts.2.down_proj.weight"]
    views = ARCHITECTURE.source_views(configs(), names)
    expected = f"{prefix}layers.1.mlp.experts.0.up_proj.weight"
    assert views["text/layers/1/moe/experts/0/up"].tensor == expected
    assert views["text/final_norm"].tensor == f"{prefix}norm.weight"
