"""The built-in recipes over the real geometry of the 27B models, without their weights.

The reference is the directory that the reference project's converter writes for Qwen3.6-27B
(conformance data; object names and object order differ, and it has a proposal head).
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import Component, codec_for
from ninfer_quant.errors import RecipeError
from ninfer_quant.pipeline.prepare import Preparation, prepare
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.loading import OFFICIAL, load_recipe
from ninfer_quant.recipes.model import Model, Parameter
from ninfer_quant.sources.logical import LogicalSource
from ninfer_runtime.models.registry import find_architecture

DIRECTORY = Path(__file__).parent / "data/official_qwen3_6_27b_groupwise_int.v3_directory.json.gz"

CONFIG_27B: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "num_hidden_layers": 64,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rope_parameters": {"rope_theta": 1e7, "mrope_section": [11, 11, 10]},
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 48,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "intermediate_size": 17408,
        "mtp_num_hidden_layers": 1,
    },
    "vision_config": {
        "model_type": "qwen3_5_vision",
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 2304,
    },
}


DENSE = [name for name in OFFICIAL if "35b_a3b" not in name]
ALONE = [name for name in DENSE if OFFICIAL[name].sources == ("base",)]
"""Dense recipes that need no other source than the model."""


class Shape(LogicalSource):
    def _read(self, begin: int, end: int) -> np.ndarray:
        raise AssertionError("preparation must not read weights")


def model_27b(components: tuple[str, ...] = ("text", "vision", "mtp")) -> Model:
    architecture = find_architecture("Qwen3_5ForConditionalGeneration")
    configs = architecture.component_configs(CONFIG_27B, components)
    return Model(
        {name: Component(config) for name, config in configs.items()},
        [
            Parameter(
                item.name,
                item.shape,
                Shape(item.shape, item.name),
                item.inputs,
                item.storage_format,
            )
            for item in architecture.parameters(configs)
        ],
        architecture.packing_groups(configs),
    )


def prepared(name: str, **options: Any) -> Preparation:
    model = model_27b(**options)
    recipe = Recipe(model)
    load_recipe(name).apply(model, recipe, {})
    return prepare(recipe, rows_per_chunk=512)


def formats(preparation: Preparation) -> dict[str, str]:
    return {
        name: weight.target.format
        for weight in preparation.weights
        for name in weight.request.parameter_names
    }


def policies(preparation: Preparation) -> Counter[str | None]:
    return Counter(use.activation_policy for use in preparation.uses)


def num_bytes(preparation: Preparation) -> int:
    targets = [weight.target for weight in preparation.weights]
    return sum(
        codec_for(target.format, target.layout, target.shape).geometry.num_bytes
        for target in targets
    )


def placements(
    bindings: dict[str, Any], objects: dict[str, tuple[list[int], str, str]]
) -> dict[str, list[tuple[Any, ...]]]:
    """Per parameter: shape, format and layout of each object that holds it, and the range there."""
    placed = {}
    for name, binding in bindings.items():
        parts = binding.get("parts") or [{"object": binding["object"], "range": None}]
        placed[name] = [(*objects[part["object"]], part["range"]) for part in parts]
    return placed


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    with gzip.open(DIRECTORY, "rt") as file:
        document: dict[str, Any] = json.load(file)
        return document


@pytest.fixture(scope="module")
def qwen3_6() -> Preparation:
    return prepared("qwen3_6_27b")


def test_qwen3_6_27b_places_every_parameter_as_the_reference_does(
    qwen3_6: Preparation, reference: dict[str, Any]
):
    expected_objects = {
        item["id"]: (item["shape"], item["format"], item["layout"])
        for item in reference["objects"]
        if item["kind"] == "tensor"
    }
    expected = placements(reference["bindings"], expected_objects)
    assert len([name for name in expected if name.startswith("proposal/")]) == 2
    targets = [weight.target for weight in qwen3_6.weights]
    ours = placements(
        {name: binding.to_json() for name, binding in qwen3_6.bindings.items()},
        {target.id: (list(target.shape), target.format, target.layout) for target in targets},
    )
    assert ours == {
        name: place for name, place in expected.items() if not name.startswith("proposal/")
    }


def test_qwen3_6_27b_has_the_uses_of_the_reference(qwen3_6: Preparation, reference: dict[str, Any]):
    expected = {
        (use["parameter"], use["input"])
        for use in reference["uses"]
        if use["parameter"] != "proposal/head"
    }
    ours = [(use.parameter, use.input) for use in qwen3_6.uses]
    assert len(ours) == len(set(ours))
    assert set(ours) == expected


def test_qwen3_6_27b_object_counts(qwen3_6: Preparation):
    by_component = Counter(
        weight.request.parameter_names[0].split("/")[0] for weight in qwen3_6.weights
    )
    # Embedding, head and norm; nine objects a full-attention layer, thirteen a GDN layer.
    assert by_component == {"text": 3 + 16 * 9 + 48 * 13, "mtp": 12, "vision": 333}
    assert len(qwen3_6.weights) == 1116
    assert qwen3_6.auxiliaries == ()


def test_qwen3_6_27b_payload_matches_the_published_arithmetic(
    qwen3_6: Preparation, reference: dict[str, Any]
):
    expected = sum(
        item["bytes"]
        for item in reference["objects"]
        if item["kind"] == "tensor" and not item["id"].startswith("text/draft_head")
    )
    assert num_bytes(qwen3_6) == expected


def test_qwen3_6_27b_allows_a8_on_the_q4_mlp_of_text_only(qwen3_6: Preparation):
    allowed = {use.parameter for use in qwen3_6.uses if use.activation_policy == "AllowA8"}
    assert allowed == {
        f"text/layers/{layer}/mlp/{role}" for layer in range(64) for role in ("gate", "up")
    }
    assert set(policies(qwen3_6)) == {"A16Only", "AllowA8"}


def test_qwen3_8_27b_differs_in_the_vocabulary_matrices_only(qwen3_6: Preparation):
    qwen3_8 = prepared("qwen3_8_27b")
    changed = dict(set(formats(qwen3_8).items()) - set(formats(qwen3_6).items()))
    assert changed == {
        "text/token_embedding": "q8_g32_fp16",
        "text/output_head": "q8_g32_fp16",
    }
    assert qwen3_8.uses == qwen3_6.uses


def test_qwen3_8_27b_q6_differs_in_gate_and_up_and_allows_no_a8():
    q6 = prepared("qwen3_8_27b_q6")
    changed = dict(set(formats(q6).items()) - set(formats(prepared("qwen3_8_27b")).items()))
    assert set(changed.values()) == {"q6_g64_fp16"}
    assert set(changed) == {
        f"text/layers/{layer}/mlp/{role}" for layer in range(64) for role in ("gate", "up")
    }
    assert set(policies(q6)) == {"A16Only"}


def test_qwen3_8_27b_bf16_is_direct_and_packs_whole_mixers():
    direct = prepared("qwen3_8_27b_bf16")
    assert Counter(formats(direct).values()) == {
        "bf16": len(direct.bindings) - 96,
        "fp32": 96,
    }
    parents = {weight.request.parameter_names: weight.target.shape for weight in direct.weights}
    attention = tuple(
        f"text/layers/3/attention/{role}" for role in ("query", "key", "gate", "value")
    )
    mixer = tuple(f"text/layers/0/gdn/{role}" for role in ("query", "key", "value", "z"))
    assert parents[attention] == (14336, 5120)
    assert parents[mixer] == (16384, 5120)
    assert parents["text/layers/0/gdn/a_projection",] == (48, 5120)
    assert parents["text/layers/0/gdn/b_projection",] == (48, 5120)
    assert set(policies(direct)) == {"A16Only"}


@pytest.mark.parametrize("name", ALONE)
def test_recipes_work_on_text_alone(name: str):
    preparation = prepared(name, components=("text",))
    assert {parameter.split("/")[0] for parameter in preparation.bindings} == {"text"}


@pytest.mark.parametrize("name", ALONE)
def test_recipes_work_without_gated_delta_net(name: str, fake_model: Callable[..., Model]):
    block = {f"text/layers/0/{role}": (64, 64) for role in ("attention/query", "mlp/gate")}
    shapes = {"text/token_embedding": (64, 64), "text/output_head": (64, 64), **block}
    inputs = dict.fromkeys(list(shapes)[1:], ("x",))
    model = fake_model(shapes, inputs=inputs)
    model.components["text"] = Component({"intermediate_size": 64})
    recipe = Recipe(model)
    load_recipe(name).apply(model, recipe, {})
    assert len(prepare(recipe, rows_per_chunk=8).weights) == 4


@pytest.mark.parametrize("name", DENSE)
def test_dense_recipes_refuse_a_mixture_of_experts(name: str, fake_model: Callable[..., Model]):
    model = fake_model({"text/token_embedding": (64, 64)})
    model.components["text"] = Component({"num_experts": 8})
    with pytest.raises(RecipeError, match="dense"):
        load_recipe(name).apply(model, Recipe(model), {})
