"""From a Hugging Face ``config.json`` of the family to the component configs of an artifact.

Defaults are filled in, everything that does not change the mathematics is dropped, and what would
change it is refused by key and value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ninfer_format.errors import UnsupportedConfigError
from ninfer_runtime.models.config_reader import ConfigReader
from ninfer_runtime.models.qwen3_5 import component_config
from ninfer_runtime.models.qwen3_5.component_config import (
    DENSE,
    DENSE_MEMBERS,
    FULL_ATTENTION,
    LINEAR_ATTENTION,
    MOE,
    MOE_MEMBERS,
    Variant,
)
from ninfer_runtime.models.qwen3_5.draft_config import DFLASH, DFLASH2, normalise_draft

DENSE_ARCHITECTURES = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
MOE_ARCHITECTURES = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
VARIANTS = dict.fromkeys(DENSE_ARCHITECTURES, DENSE) | dict.fromkeys(MOE_ARCHITECTURES, MOE)
VISION_MODEL_TYPES = {
    DENSE: ("qwen3_5_vision", "qwen3_5"),
    MOE: ("qwen3_5_moe_vision", "qwen3_5_moe"),
}


def normalise_components(
    checkpoint_config: Mapping[str, Any],
    components: Sequence[str],
    companions: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, dict[str, Any]]:
    """The `config` objects of the selected components.

    Args:
        checkpoint_config: The parsed ``config.json``.
        components: Component ids; ``text`` must be among them.
        companions: The parsed ``config.json`` of the components that have checkpoints of their own.

    Raises:
        UnsupportedConfigError: A component is not one of the family, or a value would change the
            mathematics.
    """
    component_config.check_components(tuple(components))
    top = ConfigReader(_without_nulls(checkpoint_config))
    variant = _variant(top)
    with_mtp = "mtp" in components
    text = _normalise_text(top, variant, with_mtp=with_mtp)
    configs = {"text": text}
    if with_mtp:
        configs["mtp"] = {"architectures": [variant.mtp_architecture]}
    if "vision" in components:
        configs["vision"] = _normalise_vision(top, variant, hidden_size=text["hidden_size"])
    for name in (DFLASH, DFLASH2):
        if name in components:
            own = _without_nulls((companions or {}).get(name, {}))
            parsed = component_config.parse_text(text, with_mtp=with_mtp)
            configs[name] = normalise_draft(own, name, parsed)
    return configs


def _without_nulls(value: Any) -> Any:
    """A null member of a source config means the same as an absent one."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return value


def _variant(top: ConfigReader) -> Variant:
    architectures = top.values.get("architectures")
    if isinstance(architectures, list | tuple) and len(architectures) == 1:
        variant = VARIANTS.get(str(architectures[0]))
        if variant is not None:
            return variant
    raise top.refuse("architectures", f"a list of one of {', '.join(VARIANTS)}")


def _normalise_text(top: ConfigReader, variant: Variant, *, with_mtp: bool) -> dict[str, Any]:
    raw = top.section("text_config") if "text_config" in top else top
    layer_types = _layer_types(raw)
    has_attention = with_mtp or FULL_ATTENTION in layer_types
    has_delta_net = LINEAR_ATTENTION in layer_types
    _check_constants(raw, variant, has_delta_net=has_delta_net, with_mtp=with_mtp)
    tied_in = raw if "tie_word_embeddings" in raw else top
    text: dict[str, Any] = {
        "architectures": [variant.text_architecture],
        "model_type": variant.text_model_type,
        "hidden_size": raw.integer("hidden_size"),
        "vocab_size": raw.integer("vocab_size"),
        "num_hidden_layers": raw.integer("num_hidden_layers"),
        "max_position_embeddings": raw.integer("max_position_embeddings"),
        "tie_word_embeddings": tied_in.boolean("tie_word_embeddings", False),
        "rms_norm_eps": raw.real("rms_norm_eps", 1e-6),
        "layer_types": layer_types,
    }
    for name in MOE_MEMBERS if variant is MOE else DENSE_MEMBERS:
        text[name] = raw.integer(name)
    if has_attention:
        for name in ("num_attention_heads", "num_key_value_heads", "head_dim"):
            text[name] = raw.integer(name)
        text["rope_parameters"] = _rope_parameters(raw)
    if has_delta_net:
        for name in component_config.DELTA_NET_MEMBERS:
            text[name] = raw.integer(name)
    component_config.parse_text(text, with_mtp=with_mtp, scope=raw.scope)
    return text


def _layer_types(raw: ConfigReader) -> list[str]:
    num_hidden_layers = raw.integer("num_hidden_layers")
    if "layer_types" in raw:
        known = (FULL_ATTENTION, LINEAR_ATTENTION)
        return list(raw.choices("layer_types", num_hidden_layers, known))
    interval = raw.integer("full_attention_interval", 4)
    return [
        FULL_ATTENTION if (layer + 1) % interval == 0 else LINEAR_ATTENTION
        for layer in range(num_hidden_layers)
    ]


def _check_constants(
    raw: ConfigReader, variant: Variant, *, has_delta_net: bool, with_mtp: bool
) -> None:
    raw.constant_if_present("hidden_act", "silu")
    raw.constant_if_present("attention_bias", False)
    raw.constant_if_present("attn_output_gate", True)
    if has_delta_net:
        raw.constant_if_present("mamba_ssm_dtype", "float32")
    if with_mtp:
        raw.constant_if_present("mtp_num_hidden_layers", 1)
        raw.constant_if_present("mtp_use_dedicated_embeddings", False)
    if variant is MOE:
        raw.constant_if_present("norm_topk_prob", True)
        raw.constant_if_present("decoder_sparse_step", 1)
        raw.constant_if_present("mlp_only_layers", [])
        return
    for name in MOE_MEMBERS:
        if name in raw:
            raise raw.refuse(name, "no member of a mixture of experts in a dense model")


def _rope_parameters(raw: ConfigReader) -> dict[str, Any]:
    rope = _merged_rope(raw)
    for name in ("type", "rope_type"):
        rope.constant_if_present(name, "default")
    rope.constant_if_present("factor", 1.0)
    rope.constant_if_present("mrope_interleaved", True)
    theta_in = rope if "rope_theta" in rope else raw
    factor_in = rope if "partial_rotary_factor" in rope else raw
    return {
        "rope_theta": theta_in.real("rope_theta", 1e7),
        "partial_rotary_factor": factor_in.real("partial_rotary_factor", 0.25),
        "mrope_section": list(rope.integers("mrope_section", 3, minimum=0)),
    }


def _merged_rope(raw: ConfigReader) -> ConfigReader:
    """The union of both spellings of the rotary parameters, which must not contradict."""
    merged: dict[str, Any] = {}
    for spelling in ("rope_parameters", "rope_scaling"):
        if spelling not in raw:
            continue
        section = raw.section(spelling)
        for name, value in section.values.items():
            if merged.setdefault(name, value) != value:
                raise UnsupportedConfigError(
                    section.key(name), value, expected=f"{merged[name]!r} as in rope_parameters"
                )
    return ConfigReader(merged, raw.key("rope_parameters"))


def _normalise_vision(top: ConfigReader, variant: Variant, *, hidden_size: int) -> dict[str, Any]:
    raw = top.section("vision_config")
    known = VISION_MODEL_TYPES[variant]
    if raw.values.get("model_type", known[0]) not in known:
        raise raw.refuse("model_type", " or ".join(known))
    raw.constant_if_present("in_channels", 3)
    raw.constant_if_present("hidden_act", "gelu_pytorch_tanh")
    raw.constant_if_present("deepstack_visual_indexes", [])
    raw.constant_if_present("out_hidden_size", hidden_size)
    vision: dict[str, Any] = {"model_type": variant.vision_model_type}
    for name in component_config.VISION_SIZES:
        vision[name] = raw.integer(name)
    component_config.parse_vision(vision, variant, scope=raw.scope)
    return vision
