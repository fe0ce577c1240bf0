"""Component configurations as an artifact stores them, checked and parsed.

Every member is required and no other is allowed, so that two readers of one artifact cannot
disagree about its mathematics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ninfer_format.errors import UnsupportedConfigError
from ninfer_runtime.models.config_reader import ConfigReader
from ninfer_runtime.models.qwen3_5.config import (
    AttentionConfig,
    DeltaNetConfig,
    Mixer,
    ModelConfig,
    RopeConfig,
    TextConfig,
    VisionConfig,
)

COMPONENTS = ("text", "mtp", "vision")
"""The components of the family that are implemented, in the order of their parameters."""

TEXT_ARCHITECTURE = "Qwen3_5ForCausalLM"
MOE_ARCHITECTURES = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
MTP_ARCHITECTURE = "Qwen3_5MTP"
TEXT_MODEL_TYPE = "qwen3_5_text"
VISION_MODEL_TYPE = "qwen3_5_vision"

FULL_ATTENTION = "full_attention"
LINEAR_ATTENTION = "linear_attention"

TEXT_MEMBERS = (
    "architectures",
    "model_type",
    "hidden_size",
    "vocab_size",
    "num_hidden_layers",
    "max_position_embeddings",
    "tie_word_embeddings",
    "rms_norm_eps",
    "layer_types",
    "intermediate_size",
)
ATTENTION_MEMBERS = ("num_attention_heads", "num_key_value_heads", "head_dim", "rope_parameters")
ROPE_MEMBERS = ("rope_theta", "partial_rotary_factor", "mrope_section")
DELTA_NET_MEMBERS = (
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)
VISION_SIZES = (
    "depth",
    "hidden_size",
    "intermediate_size",
    "num_heads",
    "patch_size",
    "temporal_patch_size",
    "spatial_merge_size",
    "num_position_embeddings",
)


def parse_components(configs: Mapping[str, Mapping[str, Any]]) -> ModelConfig:
    """Parse the `config` objects of an artifact's components, by component id.

    Raises:
        UnsupportedConfigError: A component is not one of the family, or a member is missing,
            unknown, of another type or outside its domain.
    """
    check_components(configs)
    text = parse_text(configs["text"], with_mtp="mtp" in configs)
    mtp = None
    if "mtp" in configs:
        parse_mtp(configs["mtp"])
        mtp = parse_attention(ConfigReader(configs["text"], "text"))
    vision = parse_vision(configs["vision"]) if "vision" in configs else None
    return ModelConfig(text, mtp, vision)


def check_components(components: Mapping[str, object] | tuple[str, ...]) -> None:
    """Refuse components that the family lacks or that lack their text."""
    for component in components:
        if component not in COMPONENTS:
            raise UnsupportedConfigError("components", component, expected=" or ".join(COMPONENTS))
    if "text" not in components:
        raise UnsupportedConfigError("components", list(components), expected="text among them")


def parse_text(
    config: Mapping[str, Any], *, with_mtp: bool = False, scope: str = "text"
) -> TextConfig:
    """Parse the text component's `config`.

    Args:
        config: The JSON object.
        with_mtp: Whether component ``mtp``, which is a full attention layer, is selected too.
        scope: Where the object stands, for errors.

    Raises:
        UnsupportedConfigError: As `parse_components`.
    """
    reader = ConfigReader(config, scope)
    _check_text_architecture(reader)
    reader.constant("model_type", TEXT_MODEL_TYPE)
    num_hidden_layers = reader.integer("num_hidden_layers")
    layer_types = reader.choices(
        "layer_types", num_hidden_layers, (FULL_ATTENTION, LINEAR_ATTENTION)
    )
    known = list(TEXT_MEMBERS)
    mixers: dict[str, Mixer] = {}
    if with_mtp or FULL_ATTENTION in layer_types:
        mixers[FULL_ATTENTION] = parse_attention(reader)
        known += ATTENTION_MEMBERS
    if LINEAR_ATTENTION in layer_types:
        mixers[LINEAR_ATTENTION] = _parse_delta_net(reader)
        known += DELTA_NET_MEMBERS
    reader.refuse_other_members(known)
    return TextConfig(
        hidden_size=reader.integer("hidden_size"),
        vocab_size=reader.integer("vocab_size"),
        num_hidden_layers=num_hidden_layers,
        max_position_embeddings=reader.integer("max_position_embeddings"),
        tie_word_embeddings=reader.boolean("tie_word_embeddings"),
        rms_norm_eps=reader.real("rms_norm_eps"),
        intermediate_size=reader.integer("intermediate_size"),
        mixers=tuple(mixers[layer_type] for layer_type in layer_types),
    )


def parse_mtp(config: Mapping[str, Any], *, scope: str = "mtp") -> None:
    """Check the multi-token prediction component; all its geometry is the text's.

    Raises:
        UnsupportedConfigError: As `parse_components`.
    """
    reader = ConfigReader(config, scope)
    reader.constant("architectures", [MTP_ARCHITECTURE])
    reader.refuse_other_members(("architectures",))


def parse_vision(config: Mapping[str, Any], *, scope: str = "vision") -> VisionConfig:
    """Parse the vision component's `config`.

    Raises:
        UnsupportedConfigError: As `parse_components`.
    """
    reader = ConfigReader(config, scope)
    reader.constant("model_type", VISION_MODEL_TYPE)
    reader.refuse_other_members(("model_type", *VISION_SIZES))
    vision = VisionConfig(**{name: reader.integer(name) for name in VISION_SIZES})
    if vision.hidden_size % vision.num_heads:
        raise reader.refuse("num_heads", f"a divisor of hidden_size = {vision.hidden_size}")
    if vision.hidden_size // vision.num_heads % 4:
        raise reader.refuse("num_heads", "heads whose dimension is a multiple of 4")
    if math.isqrt(vision.num_position_embeddings) ** 2 != vision.num_position_embeddings:
        raise reader.refuse("num_position_embeddings", "a square number")
    return vision


def _check_text_architecture(reader: ConfigReader) -> None:
    architectures = reader.values.get("architectures")
    if isinstance(architectures, list | tuple) and any(
        name in MOE_ARCHITECTURES for name in architectures
    ):
        raise reader.refuse("architectures", "a dense model; mixture-of-experts is not implemented")
    reader.constant("architectures", [TEXT_ARCHITECTURE])


def parse_attention(reader: ConfigReader) -> AttentionConfig:
    """Parse the attention members of the text component's `config`.

    Raises:
        UnsupportedConfigError: As `parse_components`.
    """
    num_attention_heads = reader.integer("num_attention_heads")
    num_key_value_heads = reader.integer("num_key_value_heads")
    if num_attention_heads % num_key_value_heads:
        raise reader.refuse(
            "num_key_value_heads", f"a divisor of num_attention_heads = {num_attention_heads}"
        )
    head_dim = reader.integer("head_dim")
    rope = _parse_rope(reader.section("rope_parameters"), head_dim)
    return AttentionConfig(num_attention_heads, num_key_value_heads, head_dim, rope)


def _parse_rope(reader: ConfigReader, head_dim: int) -> RopeConfig:
    reader.refuse_other_members(ROPE_MEMBERS)
    factor = reader.real("partial_rotary_factor")
    temporal, height, width = reader.integers("mrope_section", 3, minimum=0)
    section = (temporal, height, width)
    rope = RopeConfig(reader.real("rope_theta"), factor, section)
    rotary_dim = rope.rotary_dim(head_dim)
    if factor > 1 or rotary_dim < 2 or rotary_dim % 2:
        raise reader.refuse(
            "partial_rotary_factor",
            f"a factor of at most 1 that rotates an even part of head_dim = {head_dim}",
        )
    if sum(section) != rotary_dim // 2:
        raise reader.refuse("mrope_section", f"a sum of {rotary_dim // 2} rotated pairs")
    if tuple(rope.axes.count(axis) for axis in range(3)) != section:
        raise reader.refuse("mrope_section", "sections that interleave to their own sizes")
    return rope


def _parse_delta_net(reader: ConfigReader) -> DeltaNetConfig:
    delta_net = DeltaNetConfig(**{name: reader.integer(name) for name in DELTA_NET_MEMBERS})
    if delta_net.linear_num_value_heads % delta_net.linear_num_key_heads:
        raise reader.refuse(
            "linear_num_value_heads",
            f"a multiple of linear_num_key_heads = {delta_net.linear_num_key_heads}",
        )
    return delta_net
