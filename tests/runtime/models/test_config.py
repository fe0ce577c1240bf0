from __future__ import annotations

import copy

import pytest

from ninfer_format import UnsupportedConfigError
from ninfer_runtime.models.config_reader import round_to_binary32
from ninfer_runtime.models.qwen3_5.architecture import ARCHITECTURE
from ninfer_runtime.models.qwen3_5.component_config import parse_components
from ninfer_runtime.models.qwen3_5.config import AttentionConfig, DeltaNetConfig, RopeConfig

TEXT = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 256,
    "vocab_size": 4096,
    "num_hidden_layers": 8,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "rms_norm_eps": 9.999999974752427e-07,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
    "intermediate_size": 768,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "rope_parameters": {
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
    },
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
VISION = {
    "model_type": "qwen3_5_vision",
    "depth": 4,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_heads": 2,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 256,
}
MTP = {"architectures": ["Qwen3_5MTP"]}
ATTENTION = ("num_attention_heads", "num_key_value_heads", "head_dim", "rope_parameters")
DELTA_NET = tuple(name for name in TEXT if name.startswith("linear_"))


def edited(config: dict, path: str, value: object) -> dict:
    """A copy with the member at the dotted `path` set, or removed if `value` is ``...``."""
    config = copy.deepcopy(config)
    *parents, name = path.split(".")
    target = config
    for parent in parents:
        target = target[parent]
    if value is ...:
        del target[name]
    else:
        target[name] = value
    return config


def text_of(config: dict, components=("text",)) -> dict:
    return ARCHITECTURE.component_configs(config, components)["text"]


# --- from a checkpoint -----------------------------------------------------------------------


def test_the_tiny_checkpoint_is_normalised(checkpoint_config):
    configs = ARCHITECTURE.component_configs(checkpoint_config, ["text", "mtp", "vision"])
    assert configs == {"text": TEXT, "mtp": MTP, "vision": VISION}


def test_only_selected_components_are_returned(checkpoint_config):
    assert set(ARCHITECTURE.component_configs(checkpoint_config, ["text"])) == {"text"}


def test_what_is_normalised_can_be_read_back(checkpoint_config):
    configs = ARCHITECTURE.component_configs(checkpoint_config, ["text", "mtp", "vision"])
    model = parse_components(configs)
    assert model.text.hidden_size == 256
    assert [type(mixer) for mixer in model.text.mixers] == (
        [DeltaNetConfig] * 3 + [AttentionConfig]
    ) * 2
    assert model.mtp == model.text.mixers[3]
    assert model.vision is not None
    assert model.vision.patch_width == 3 * 2 * 16 * 16
    assert model.vision.merger_width == 512


def test_a_flat_text_config_gives_the_same(checkpoint_config):
    flat = checkpoint_config.pop("text_config")
    flat["architectures"] = ["Qwen3_5ForCausalLM"]
    assert text_of(flat) == TEXT


@pytest.mark.parametrize("component", ["eagle3", "decision"])
def test_other_components_are_refused_by_name(checkpoint_config, component):
    with pytest.raises(UnsupportedConfigError, match=component) as caught:
        ARCHITECTURE.component_configs(checkpoint_config, ["text", component])
    assert caught.value.key == "components"
    with pytest.raises(UnsupportedConfigError, match=component):
        ARCHITECTURE.parameters({"text": TEXT, component: {}})


def test_text_cannot_be_left_out(checkpoint_config):
    with pytest.raises(UnsupportedConfigError, match="text among them"):
        ARCHITECTURE.component_configs(checkpoint_config, ["vision"])


@pytest.mark.parametrize(
    ("architectures", "said"),
    [
        (["LlamaForCausalLM"], "Qwen3_5ForCausalLM"),
        (["Qwen3_5ForCausalLM", "Qwen3_5ForCausalLM"], "a list of one"),
        ("Qwen3_5ForCausalLM", "a list of one"),
        ([], "a list of one"),
        (..., "a list of one"),
    ],
)
def test_other_architectures_are_refused(checkpoint_config, architectures, said):
    config = edited(checkpoint_config, "architectures", architectures)
    with pytest.raises(UnsupportedConfigError, match=said) as caught:
        text_of(config)
    assert caught.value.key == "architectures"
    if architectures is not ...:
        assert caught.value.value == architectures


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("text_config.hidden_act", "gelu"),
        ("text_config.attention_bias", True),
        ("text_config.attn_output_gate", False),
        ("text_config.attn_output_gate", 1),
        ("text_config.mamba_ssm_dtype", "bfloat16"),
        ("text_config.rope_parameters.rope_type", "yarn"),
        ("text_config.rope_parameters.type", "linear"),
        ("text_config.rope_parameters.factor", 4.0),
        ("text_config.rope_parameters.mrope_interleaved", False),
        ("text_config.rope_parameters.mrope_section", ...),
        ("text_config.rope_parameters.mrope_section", [11, 11]),
        ("text_config.rope_parameters.mrope_section", [12, 11, 10]),
        ("text_config.rope_parameters.mrope_section", [11, -1, 22]),
        ("text_config.rope_parameters.mrope_section", [10, 11, 11]),
        ("text_config.rope_parameters.mrope_section", [0, 16, 16]),
        ("text_config.rope_parameters.partial_rotary_factor", 1.5),
        ("text_config.rope_parameters.partial_rotary_factor", 0.001),
        ("text_config.rope_parameters.partial_rotary_factor", 0.254),
        ("text_config.rope_parameters.rope_theta", 0),
        ("text_config.rope_parameters.rope_theta", -1.0),
        ("text_config.rope_parameters.rope_theta", 1e39),
        ("text_config.rope_parameters.rope_theta", 10**400),
        ("text_config.rope_parameters.rope_theta", "1e7"),
        ("text_config.rms_norm_eps", 1e-60),
        ("text_config.rms_norm_eps", True),
        ("text_config.rms_norm_eps", float("nan")),
        ("text_config.num_attention_heads", 3.0),
        ("text_config.num_key_value_heads", 4),
        ("text_config.linear_num_value_heads", 3),
        ("text_config.linear_key_head_dim", 0),
        ("text_config.hidden_size", True),
        ("text_config.hidden_size", 2**32),
        ("text_config.hidden_size", -256),
        ("text_config.hidden_size", "256"),
        ("text_config.hidden_size", ...),
        ("text_config.vocab_size", ...),
        ("text_config.intermediate_size", ...),
        ("text_config.head_dim", ...),
        ("text_config.linear_conv_kernel_dim", ...),
        ("text_config.max_position_embeddings", ...),
        ("text_config.tie_word_embeddings", 0),
        ("text_config.layer_types", ["linear_attention"] * 7),
        ("text_config.layer_types", "linear_attention"),
        ("text_config.num_experts", 8),
        ("text_config.moe_intermediate_size", 64),
        ("text_config", []),
    ],
)
def test_what_would_change_the_mathematics_is_refused_by_key(checkpoint_config, path, value):
    with pytest.raises(UnsupportedConfigError) as caught:
        text_of(edited(checkpoint_config, path, value))
    assert caught.value.key == path
    assert repr(caught.value.value) in str(caught.value)


@pytest.mark.parametrize(
    ("head_dim", "factor", "rotary_dim"),
    [
        (256, 0.25, 64),
        (128, 1.0, 128),
        (80, 0.9, 72),
        (20, 0.7, 14),
        (40, 0.35, 14),
        (40, 0.36, 14),
    ],
)
def test_a_factor_that_binary32_rounds_down_rotates_what_was_meant(head_dim, factor, rotary_dim):
    rope = RopeConfig(1e7, round_to_binary32(factor), (rotary_dim // 2, 0, 0))
    assert rope.rotary_dim(head_dim) == rotary_dim


def test_an_unknown_layer_type_is_named_with_its_place(checkpoint_config):
    types = checkpoint_config["text_config"]["layer_types"]
    types[5] = "sliding_attention"
    with pytest.raises(UnsupportedConfigError) as caught:
        text_of(checkpoint_config)
    assert caught.value.key == "text_config.layer_types[5]"
    assert caught.value.value == "sliding_attention"


def test_contradicting_rope_spellings_are_refused(checkpoint_config):
    checkpoint_config["text_config"]["rope_scaling"] = {"rope_theta": 5e6}
    with pytest.raises(UnsupportedConfigError) as caught:
        text_of(checkpoint_config)
    assert caught.value.key == "text_config.rope_scaling.rope_theta"


def test_rope_spellings_are_merged(checkpoint_config):
    text = checkpoint_config["text_config"]
    section = text["rope_parameters"].pop("mrope_section")
    text["rope_scaling"] = {"mrope_section": section, "rope_theta": 10000000}
    assert text_of(checkpoint_config) == TEXT


def test_rope_values_beside_the_rope_object_are_the_second_choice(checkpoint_config):
    text = checkpoint_config["text_config"]
    text["rope_theta"] = 123.0
    assert text_of(checkpoint_config)["rope_parameters"]["rope_theta"] == 1e7
    del text["rope_parameters"]["rope_theta"]
    assert text_of(checkpoint_config)["rope_parameters"]["rope_theta"] == 123.0


def test_defaults(checkpoint_config):
    text = checkpoint_config["text_config"]
    for name in ("rms_norm_eps", "partial_rotary_factor", "tie_word_embeddings", "layer_types"):
        del text[name]
    for name in ("rope_theta", "partial_rotary_factor", "rope_type", "mrope_interleaved"):
        del text["rope_parameters"][name]
    del text["full_attention_interval"], checkpoint_config["tie_word_embeddings"]
    assert text_of(checkpoint_config) == TEXT


def test_the_interval_gives_the_layer_types(checkpoint_config):
    text = checkpoint_config["text_config"]
    del text["layer_types"]
    text["full_attention_interval"] = 3
    assert [kind[0] for kind in text_of(checkpoint_config)["layer_types"]] == list("llfllfll")


def test_null_means_absent(checkpoint_config):
    text = checkpoint_config["text_config"]
    text.update(rope_scaling=None, hidden_act=None, layer_types=None, num_experts=None)
    assert text_of(checkpoint_config) == TEXT


def test_tied_embeddings_of_the_text_win_over_the_top_level(checkpoint_config):
    text = checkpoint_config["text_config"]
    checkpoint_config["tie_word_embeddings"] = True
    assert text_of(checkpoint_config)["tie_word_embeddings"] is False
    del text["tie_word_embeddings"]
    assert text_of(checkpoint_config)["tie_word_embeddings"] is True


def test_reals_are_rounded_to_binary32(checkpoint_config):
    checkpoint_config["text_config"]["rms_norm_eps"] = 1e-5
    assert text_of(checkpoint_config)["rms_norm_eps"] == 9.999999747378752e-06


@pytest.mark.parametrize(
    ("kind", "absent"), [("full_attention", DELTA_NET), ("linear_attention", ATTENTION)]
)
def test_a_group_that_no_layer_needs_is_dropped(checkpoint_config, kind, absent):
    text = checkpoint_config["text_config"]
    text["layer_types"] = [kind] * 8
    for name in absent:
        text.pop(name)
    found = text_of(checkpoint_config)
    assert set(found) == set(TEXT) - set(absent)


def test_the_draft_layer_needs_the_attention_group(checkpoint_config):
    checkpoint_config["text_config"]["layer_types"] = ["linear_attention"] * 8
    assert set(text_of(checkpoint_config, ("text", "mtp"))) == set(TEXT)


def test_mamba_dtype_matters_only_to_linear_layers(checkpoint_config):
    text = checkpoint_config["text_config"]
    text.update(layer_types=["full_attention"] * 8, mamba_ssm_dtype="bfloat16")
    assert "linear_key_head_dim" not in text_of(checkpoint_config)


@pytest.mark.parametrize(
    ("name", "value"), [("mtp_num_hidden_layers", 2), ("mtp_use_dedicated_embeddings", True)]
)
def test_another_draft_layer_is_refused_only_if_it_is_selected(checkpoint_config, name, value):
    checkpoint_config["text_config"][name] = value
    assert text_of(checkpoint_config) == TEXT
    with pytest.raises(UnsupportedConfigError) as caught:
        text_of(checkpoint_config, ("text", "mtp"))
    assert caught.value.key == f"text_config.{name}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_type", "qwen3_5_moe_vision"),
        ("model_type", "qwen2_vl"),
        ("in_channels", 1),
        ("hidden_act", "gelu"),
        ("deepstack_visual_indexes", [3]),
        ("out_hidden_size", 128),
        ("num_heads", 3),
        ("num_heads", 64),
        ("num_position_embeddings", 255),
        ("depth", 0),
        ("patch_size", ...),
    ],
)
def test_another_vision_tower_is_refused_by_key(checkpoint_config, name, value):
    config = edited(checkpoint_config, f"vision_config.{name}", value)
    assert text_of(config) == TEXT
    with pytest.raises(UnsupportedConfigError) as caught:
        text_of(config, ("text", "vision"))
    assert caught.value.key == f"vision_config.{name}"


@pytest.mark.parametrize("model_type", ["qwen3_5", ...])
def test_the_vision_type_of_released_configs_is_normalised(checkpoint_config, model_type):
    config = edited(checkpoint_config, "vision_config.model_type", model_type)
    assert ARCHITECTURE.component_configs(config, ["text", "vision"])["vision"] == VISION


def test_vision_cannot_be_selected_where_there_is_none(checkpoint_config):
    del checkpoint_config["vision_config"]
    with pytest.raises(UnsupportedConfigError, match=r"vision_config = <absent>"):
        ARCHITECTURE.component_configs(checkpoint_config, ["text", "vision"])


# --- from an artifact ------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXT)
def test_every_text_member_is_required(name):
    with pytest.raises(UnsupportedConfigError) as caught:
        parse_components({"text": edited(TEXT, name, ...)})
    assert caught.value.key == f"text.{name}"


@pytest.mark.parametrize("name", VISION)
def test_every_vision_member_is_required(name):
    with pytest.raises(UnsupportedConfigError) as caught:
        parse_components({"text": TEXT, "vision": edited(VISION, name, ...)})
    assert caught.value.key == f"vision.{name}"


@pytest.mark.parametrize(
    "path",
    [
        "text.hidden_act",
        "text.num_experts",
        "text.rope_parameters.factor",
        "vision.in_channels",
        "mtp.x",
    ],
)
def test_unknown_members_are_refused(path):
    configs = edited({"text": TEXT, "vision": VISION, "mtp": MTP}, path, 1)
    with pytest.raises(UnsupportedConfigError) as caught:
        parse_components(configs)
    assert caught.value.key == path


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("text.architectures", ["Qwen3_5ForConditionalGeneration"]),
        ("text.model_type", "qwen3_5_moe_text"),
        ("text.rms_norm_eps", None),
        ("text.rope_parameters", None),
        ("vision.model_type", "qwen3_5"),
        ("mtp.architectures", ["Qwen3_5MoeMTP"]),
        ("mtp.architectures", "Qwen3_5MTP"),
    ],
)
def test_names_of_other_kinds_are_refused(path, value):
    configs = edited({"text": TEXT, "vision": VISION, "mtp": MTP}, path, value)
    with pytest.raises(UnsupportedConfigError) as caught:
        parse_components(configs)
    assert caught.value.key == path


@pytest.mark.parametrize(
    ("kind", "superfluous"), [("full_attention", DELTA_NET), ("linear_attention", ATTENTION)]
)
def test_a_group_that_no_layer_needs_is_refused(kind, superfluous):
    with pytest.raises(UnsupportedConfigError) as caught:
        parse_components({"text": edited(TEXT, "layer_types", [kind] * 8)})
    assert caught.value.key == f"text.{superfluous[0]}"


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ((11, 11, 10), (0, 1, 2) * 10 + (0, 1)),
        ((3, 3, 2), (0, 1, 2, 0, 1, 2, 0, 1)),
        ((4, 0, 0), (0, 0, 0, 0)),
        ((6, 1, 1), (0, 1, 2, 0, 0, 0, 0, 0)),
    ],
)
def test_interleaved_axes(section, expected):
    assert RopeConfig(1e7, 1.0, section).axes == expected
