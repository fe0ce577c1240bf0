from __future__ import annotations

from math import prod

import numpy as np
import pytest

from ninfer_format import UnsupportedConfigError
from ninfer_runtime.models.qwen3_5.architecture import ARCHITECTURE
from ninfer_runtime.models.registry import find_architecture

ALL = ("text", "mtp", "vision")


@pytest.fixture
def configs(checkpoint_config) -> dict:
    return ARCHITECTURE.component_configs(checkpoint_config, ALL)


def parameter(configs: dict, name: str):
    return {each.name: each for each in ARCHITECTURE.parameters(configs)}[name]


def test_every_tensor_of_the_checkpoint_is_used_completely(configs, tiny_checkpoint):
    views = ARCHITECTURE.source_views(configs, tiny_checkpoint.names)
    used: dict[str, list[tuple[int, int]]] = {}
    for each in ARCHITECTURE.parameters(configs):
        view = views[each.name]
        assert tiny_checkpoint.info(view.tensor).shape == view.tensor_shape
        rows = view.rows or ((0, view.tensor_shape[0]),)
        row_elements = prod(view.tensor_shape[1:])
        assert sum(end - begin for begin, end in rows) * row_elements == prod(each.shape)
        used.setdefault(view.tensor, []).extend(rows)
    assert set(used) == set(tiny_checkpoint.names)
    for tensor, ranges in used.items():
        ends = [0]
        for begin, end in sorted(ranges):
            assert begin == ends[-1], tensor
            ends.append(end)
        assert ends[-1] == tiny_checkpoint.info(tensor).shape[0]


def test_views_come_in_the_order_of_the_parameters(configs, tiny_checkpoint):
    names = [each.name for each in ARCHITECTURE.parameters(configs)]
    assert list(ARCHITECTURE.source_views(configs, tiny_checkpoint.names)) == names
    assert len(set(names)) == len(names)
    assert names[:3] == ["text/token_embedding", "text/output_head", "text/final_norm"]
    residencies = [name.split("/")[0] for name in names]
    assert residencies == sorted(residencies, key=ALL.index)


def test_total_size_is_that_of_the_model(configs):
    assert sum(prod(each.shape) for each in ARCHITECTURE.parameters(configs)) == 13_453_744


@pytest.mark.parametrize(
    ("name", "shape", "inputs", "storage_format"),
    [
        ("text/token_embedding", (4096, 256), (), "bf16"),
        ("text/output_head", (4096, 256), ("text/final_hidden", "mtp/final_hidden"), "bf16"),
        ("text/final_norm", (256,), (), "bf16"),
        ("text/layers/3/attention/query", (512, 256), ("text/layers/3/mixer_input",), "bf16"),
        ("text/layers/3/attention/gate", (512, 256), ("text/layers/3/mixer_input",), "bf16"),
        ("text/layers/3/attention/value", (256, 256), ("text/layers/3/mixer_input",), "bf16"),
        ("text/layers/3/attention/query_norm", (256,), (), "bf16"),
        (
            "text/layers/3/attention/output",
            (256, 512),
            ("text/layers/3/attention/gated_output",),
            "bf16",
        ),
        ("text/layers/0/gdn/a_log", (4,), (), "fp32"),
        ("text/layers/0/gdn/dt_bias", (4,), (), "fp32"),
        ("text/layers/0/gdn/convolution", (4, 1024), (), "bf16"),
        ("text/layers/0/gdn/a_projection", (4, 256), ("text/layers/0/mixer_input",), "bf16"),
        ("text/layers/0/gdn/value", (512, 256), ("text/layers/0/mixer_input",), "bf16"),
        ("text/layers/0/gdn/norm", (128,), (), "bf16"),
        ("text/layers/0/gdn/output", (256, 512), ("text/layers/0/gdn/gated_output",), "bf16"),
        ("text/layers/0/mlp/up", (768, 256), ("text/layers/0/ffn_input",), "bf16"),
        ("text/layers/0/mlp/down", (256, 768), ("text/layers/0/mlp/product",), "bf16"),
        ("mtp/input_projection", (256, 512), ("mtp/stem_input",), "bf16"),
        ("mtp/layers/0/attention/key", (256, 256), ("mtp/layers/0/mixer_input",), "bf16"),
        ("mtp/layers/0/mlp/gate", (768, 256), ("mtp/layers/0/ffn_input",), "bf16"),
        ("vision/patch_embedding", (128, 1536), ("vision/patch_input",), "bf16"),
        ("vision/position_embedding", (256, 128), (), "bf16"),
        ("vision/layers/2/norm1_weight", (128,), (), "bf16"),
        (
            "vision/layers/2/attention/key",
            (128, 128),
            ("vision/layers/2/attention_input",),
            "bf16",
        ),
        ("vision/layers/2/attention/key_bias", (128,), (), "bf16"),
        (
            "vision/layers/2/attention/output",
            (128, 128),
            ("vision/layers/2/attention_output",),
            "bf16",
        ),
        ("vision/layers/2/mlp/fc1", (256, 128), ("vision/layers/2/mlp_input",), "bf16"),
        ("vision/layers/2/mlp/fc2", (128, 256), ("vision/layers/2/mlp_activation",), "bf16"),
        ("vision/merger/fc1", (512, 512), ("vision/merger/input",), "bf16"),
        ("vision/merger/fc2_bias", (256,), (), "bf16"),
    ],
)
def test_a_parameter_has_its_shape_and_inputs(configs, name, shape, inputs, storage_format):
    found = parameter(configs, name)
    assert (found.shape, found.inputs, found.storage_format) == (shape, inputs, storage_format)
    assert found.is_projection == bool(inputs)
    assert found.residency == name.split("/")[0]


def test_without_the_draft_layer_the_head_has_one_input(checkpoint_config):
    configs = ARCHITECTURE.component_configs(checkpoint_config, ["text"])
    assert parameter(configs, "text/output_head").inputs == ("text/final_hidden",)


def test_queries_and_gates_alternate_head_by_head(configs, tiny_checkpoint):
    views = ARCHITECTURE.source_views(configs, tiny_checkpoint.names)
    assert views["text/layers/3/attention/query"].rows == ((0, 256), (512, 768))
    assert views["text/layers/3/attention/gate"].rows == ((256, 512), (768, 1024))


def test_packing_groups_join_parameters_of_one_input_and_residency(configs):
    named = {each.name: each for each in ARCHITECTURE.parameters(configs)}
    for group in ARCHITECTURE.packing_groups(configs):
        members = [named[name] for name in group]
        assert len({member.residency for member in members}) == 1
        assert len({member.inputs for member in members}) == 1
        assert len({member.shape[1:] for member in members}) == 1


def test_packing_groups_of_the_layer_kinds(configs):
    groups = ARCHITECTURE.packing_groups(configs)

    def of(prefix: str) -> list[str]:
        return [
            " ".join(name.rsplit("/", 1)[1] for name in group)
            for group in groups
            if group[0].startswith(prefix)
        ]

    attention = ["query key gate value", "query key", "gate value", "gate up"]
    assert of("text/layers/3/") == attention
    assert of("mtp/") == attention
    assert of("text/layers/0/") == [
        "query key value z",
        "query key",
        "value z",
        "a_projection b_projection",
        "gate up",
    ]
    assert of("vision/layers/0/") == ["query key value", "query_bias key_bias value_bias"]


def test_the_embedding_decides_the_prefix(configs, tiny_checkpoint):
    flat = [name.replace("model.language_model.", "model.") for name in tiny_checkpoint.names]
    views = ARCHITECTURE.source_views(configs, flat)
    assert {view.tensor for view in views.values()} == set(flat)
    both = ARCHITECTURE.source_views(configs, [*flat, *tiny_checkpoint.names])
    assert {view.tensor for view in both.values()} == set(tiny_checkpoint.names)


def test_a_tied_head_comes_from_the_embedding(checkpoint_config, tiny_checkpoint):
    checkpoint_config["text_config"]["tie_word_embeddings"] = True
    configs = ARCHITECTURE.component_configs(checkpoint_config, ["text"])
    names = [name for name in tiny_checkpoint.names if name != "lm_head.weight"]
    views = ARCHITECTURE.source_views(configs, names)
    assert views["text/output_head"] == views["text/token_embedding"]


def test_the_convolution_is_transposed(tiny_model, tiny_checkpoint):
    stored = tiny_checkpoint.read("model.language_model.layers.0.linear_attn.conv1d.weight")
    weight = stored.astype(np.float32).reshape(1024, 1, 4)
    loaded = tiny_model.blocks[0].mixer.weights.convolution.array
    for tap in range(4):
        np.testing.assert_array_equal(loaded[tap], weight[:, 0, tap])


def test_resources():
    assert "tokenizer.json" in ARCHITECTURE.resource_roles("text")
    assert "generation_config.json" in ARCHITECTURE.resource_roles("text")
    assert len(ARCHITECTURE.resource_roles("vision")) == 2
    assert ARCHITECTURE.resource_roles("mtp") == ()


def test_the_registry_finds_the_family_by_any_of_its_names():
    for name in ARCHITECTURE.checkpoint_architectures:
        assert find_architecture(name) is ARCHITECTURE
    with pytest.raises(UnsupportedConfigError, match="Qwen3_5ForCausalLM") as caught:
        find_architecture("LlamaForCausalLM")
    assert caught.value.key == "architectures"
