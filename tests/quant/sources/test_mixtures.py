"""A small mixture of experts: both layouts of its tensors, and experts with their own divisors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ninfer_format import CheckpointError, open_artifact
from ninfer_quant.errors import RecipeError
from ninfer_quant.pipeline.conversion import Conversion

from .conftest import Nvfp4, Tensors, tensor_record, to_nvfp4

E, D, INNER = 4, 128, 128
PREFIX = "model.language_model."


@pytest.fixture(scope="module")
def config(checkpoint: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((checkpoint / "config.json").read_text("utf-8"))
    text = document["text_config"]
    del text["intermediate_size"]
    text |= {
        "hidden_size": D,
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "num_attention_heads": 2,
        "num_experts": E,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": INNER,
        "shared_expert_intermediate_size": INNER,
        "mtp_num_hidden_layers": 0,
    }
    return document | {"architectures": ["Qwen3_5MoeForConditionalGeneration"]}


@pytest.fixture(scope="module")
def fused(config: dict[str, Any]) -> Tensors:
    """All tensors, with two for all experts."""
    rng = np.random.default_rng(0)
    layer = f"{PREFIX}layers.0."
    shapes = {
        f"{PREFIX}embed_tokens.weight": (4096, D),
        "lm_head.weight": (4096, D),
        f"{PREFIX}norm.weight": (D,),
        f"{layer}input_layernorm.weight": (D,),
        f"{layer}post_attention_layernorm.weight": (D,),
        f"{layer}self_attn.q_proj.weight": (1024, D),
        f"{layer}self_attn.k_proj.weight": (256, D),
        f"{layer}self_attn.v_proj.weight": (256, D),
        f"{layer}self_attn.o_proj.weight": (D, 512),
        f"{layer}self_attn.q_norm.weight": (256,),
        f"{layer}self_attn.k_norm.weight": (256,),
        f"{layer}mlp.gate.weight": (E, D),
        f"{layer}mlp.shared_expert_gate.weight": (1, D),
        f"{layer}mlp.experts.gate_up_proj": (E, 2 * INNER, D),
        f"{layer}mlp.experts.down_proj": (E, D, INNER),
        f"{layer}mlp.shared_expert.gate_proj.weight": (INNER, D),
        f"{layer}mlp.shared_expert.up_proj.weight": (INNER, D),
        f"{layer}mlp.shared_expert.down_proj.weight": (D, INNER),
    }
    return {
        name: (rng.standard_normal(shape) / 8).astype(ml_dtypes.bfloat16)
        for name, shape in shapes.items()
    }


def split_experts(tensors: Tensors) -> Tensors:
    """The same weights with three tensors for every expert."""
    found = {name: array for name, array in tensors.items() if ".experts." not in name}
    prefix = f"{PREFIX}layers.0.mlp.experts."
    gate_up, down = tensors[f"{prefix}gate_up_proj"], tensors[f"{prefix}down_proj"]
    for expert in range(E):
        found[f"{prefix}{expert}.gate_proj.weight"] = gate_up[expert, :INNER]
        found[f"{prefix}{expert}.up_proj.weight"] = gate_up[expert, INNER:]
        found[f"{prefix}{expert}.down_proj.weight"] = down[expert]
    return found


@pytest.fixture
def make_model(
    config: dict[str, Any], checkpoint: Path, write_weights: Callable[..., Path], tmp_path: Path
) -> Callable[[str, Tensors], Path]:
    def make(name: str, content: Tensors) -> Path:
        folder = write_weights(tmp_path / name, content)
        for file in checkpoint.glob("*.json*"):
            shutil.copy(file, folder)
        shutil.copy(checkpoint / "chat_template.jinja", folder)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return folder

    return make


def formats(path: Path) -> dict[str, str]:
    with open_artifact(path) as artifact:
        return {
            name: tensor_record(artifact, artifact.parts(name)[0].object).format
            for name in artifact.directory.bindings
        }


def test_both_layouts_give_the_same_artifact(
    fused: Tensors, make_model: Callable[..., Path], convert_with: Callable[..., Path]
):
    one = convert_with("qwen3_6_35b_a3b", model=make_model("fused", fused))
    other = convert_with("qwen3_6_35b_a3b", model=make_model("split", split_experts(fused)))
    with open_artifact(one) as first, open_artifact(other) as second:
        assert first.directory.bindings == second.directory.bindings
        for record in first.directory.tensors:
            np.testing.assert_array_equal(
                first.read_object(record.id), second.read_object(record.id)
            )
        moe = "text/layers/0/moe/"
        bank = first.parts(f"{moe}experts/1/up")[0]
        assert tensor_record(first, bank.object).shape == (E * 2 * INNER, D)
        assert bank.begin == (2 * 1 + 1) * INNER * D
        control = first.parts(f"{moe}shared_score")[0]
        assert tensor_record(first, control.object).shape == (E + 1, D)
    found = formats(one)
    assert found[f"{moe}experts/3/gate"] == "q4_g64_fp16"
    assert found[f"{moe}experts/3/down"] == "q5_g64_fp16"
    assert found[f"{moe}router"] == "bf16"
    assert found[f"{moe}shared/down"] == found["text/layers/0/attention/output"] == "q8_g32_fp16"
    assert (found["text/token_embedding"], found["text/output_head"]) == (
        "q8_g32_fp16",
        "q6_g64_fp16",
    )


def test_imported_experts_are_stacked_with_their_divisors(
    fused: Tensors,
    make_model: Callable[..., Path],
    write_weights: Callable[..., Path],
    convert_with: Callable[..., Path],
    tmp_path: Path,
):
    quantized: Tensors = {}
    matrices: dict[str, Nvfp4] = {}
    experts = split_experts(fused)
    for index, (name, weight) in enumerate(experts.items()):
        if ".mlp." in name and "proj" in name:
            module = name.removesuffix(".weight")
            matrices[module] = matrix = to_nvfp4(weight, 2000.0 + 10 * index)
            quantized[f"{module}.weight_packed"] = matrix.packed
            quantized[f"{module}.weight_scale"] = matrix.scales
            quantized[f"{module}.weight_global_scale"] = np.array([matrix.divisor])
            quantized[f"{module}.input_global_scale"] = np.array([50.0 - index], np.float32)
    path = convert_with(
        "qwen3_6_35b_a3b_nvfp4",
        {"quantized": write_weights(tmp_path / "quantized", quantized)},
        model=make_model("fused", fused),
    )
    moe, hf = "text/layers/0/moe/", f"{PREFIX}layers.0.mlp."
    with open_artifact(path) as artifact:
        for role, roles in (("gate", ("gate", "up")), ("down", ("down",))):
            (part, *_) = artifact.parts(f"{moe}experts/0/{role}")
            words = artifact.words(part.object)
            members = [matrices[f"{hf}experts.{e}.{r}_proj"] for e in range(E) for r in roles]
            np.testing.assert_array_equal(
                words.divisors.view(np.float32), [matrix.divisor for matrix in members]
            )
            np.testing.assert_array_equal(
                words.codes, np.concatenate([matrix.codes for matrix in members])
            )
        shared = tensor_record(artifact, artifact.parts(f"{moe}shared/up")[0].object)
        assert (shared.shape, shared.divisors) == ((2 * INNER, D), 2)
        alone = tensor_record(artifact, artifact.parts(f"{moe}shared/down")[0].object)
        assert (alone.shape, alone.divisors) == ((D, INNER), 1)
        values = artifact.decode_parameter(f"{moe}experts/2/up", (INNER, D))
        np.testing.assert_array_equal(values, matrices[f"{hf}experts.2.up_proj"].values)
        # One divisor for all experts of a bank, which share their input; the smallest.
        uses = {use.parameter: use for use in artifact.directory.uses}
        for parameter in (f"{moe}experts/0/gate", f"{moe}experts/3/up"):
            binding = uses[parameter].auxiliaries["activation_input_divisor"]
            smallest = min(
                float(quantized[f"{hf}experts.{e}.{r}_proj.input_global_scale"][0])
                for e in range(E)
                for r in ("gate", "up")
            )
            assert float(artifact.decode_object(str(binding.object)).reshape(())) == smallest


def test_an_expert_that_the_source_lacks_is_named(
    fused: Tensors,
    make_model: Callable[..., Path],
    write_weights: Callable[..., Path],
    plan: Callable[..., Conversion],
    tmp_path: Path,
):
    with pytest.raises(CheckpointError, match="not encoded, expected nvfp4"):
        plan(
            "qwen3_6_35b_a3b_nvfp4",
            {"quantized": write_weights(tmp_path / "quantized", split_experts(fused))},
            model=make_model("fused", fused),
        )


def test_recipes_refuse_the_other_kind_of_model(
    fused: Tensors, make_model: Callable[..., Path], plan: Callable[..., Conversion]
):
    with pytest.raises(RecipeError, match="mixtures of experts"):
        plan("qwen3_6_35b_a3b")
    with pytest.raises(RecipeError, match="dense models"):
        plan("qwen3_8_27b", model=make_model("fused", fused))
