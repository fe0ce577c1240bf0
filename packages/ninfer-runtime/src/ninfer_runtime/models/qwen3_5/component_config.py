"""Component configurations as an artifact stores them, checked and parsed.

Every member is required and no other is allowed, so that two readers of one artifact cannot
disagree about its mathematics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_format.errors import UnsupportedConfigError
from ninfer_runtime.models.config_reader import ConfigReader
from ninfer_runtime.models.qwen3_5.config import (
    AttentionConfig,
    DeltaNetConfig,
    DenseConfig,
    FeedForward,
    Mixer,
    ModelConfig,
    MoeConfig,
    RopeConfig,
    TextConfig,
    VisionConfig,
)
from ninfer_runtime.models.qwen3_5.draft_config import DFLASH, DFLASH2, parse_draft

COMPONENTS = ("text", "mtp", "vision", DFLASH, DFLASH2)
"""The components of the family that are implemented, in the order of their parameters."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What dense models and mixtures of experts call the same things."""

    text_architecture: str
    text_model_type: str
    mtp_architecture: str
    vision_model_type: str


DENSE = Variant("Qwen3_5ForCausalLM", "qwen3_5_text", "Qwen3_5MTP", "qwen3_5_vision")
MOE = Variant("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", "Qwen3_5MoeMTP", "qwen3_5_moe_vision")
VARIANTS = {variant.text_architecture: variant for variant in (DENSE, MOE)}

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
)
DENSE_MEMBERS = ("intermediate_size",)
MOE_MEMBERS = (
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
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
        parse_mtp(configs["mtp"], variant_of(text))
        mtp = parse_attention(ConfigReader(configs["text"], "text"))
    vision = None
    if "vision" in configs:
        vision = parse_vision(configs["vision"], variant_of(text))
    drafts = tuple(
        parse_draft(configs[name], name, text) for name in (DFLASH, DFLASH2) if name in configs
    )
    return ModelConfig(text, mtp, vision, drafts)


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
    variant = _text_variant(reader)
    reader.constant("model_type", variant.text_model_type)
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
    known += MOE_MEMBERS if variant is MOE else DENSE_MEMBERS
    reader.refuse_other_members(known)
    return TextConfig(
        hidden_size=reader.integer("hidden_size"),
        vocab_size=reader.integer("vocab_size"),
        num_hidden_layers=num_hidden_layers,
        max_position_embeddings=reader.integer("max_position_embeddings"),
        tie_word_embeddings=reader.boolean("tie_word_embeddings"),
        rms_norm_eps=reader.real("rms_norm_eps"),
        feed_forward=_parse_feed_forward(reader, variant),
        mixers=tuple(mixers[layer_type] for layer_type in layer_types),
    )


def variant_of(text: TextConfig) -> Variant:
    """The variant of a parsed text."""
    return MOE if text.is_moe else DENSE


def _parse_feed_forward(reader: ConfigReader, variant: Variant) -> FeedForward:
    if variant is DENSE:
        return DenseConfig(reader.integer("intermediate_size"))
    moe = MoeConfig(**{name: reader.integer(name) for name in MOE_MEMBERS})
    if moe.num_experts_per_tok > moe.num_experts:
        raise reader.refuse("num_experts_per_tok", f"at most num_experts = {moe.num_experts}")
    return moe


def parse_mtp(config: Mapping[str, Any], variant: Variant = DENSE, *, scope: str = "mtp") -> None:
    """Check the multi-token prediction component; all its geometry is the text's.

    Args:
        config: The JSON object.
        variant: That of the text.
        scope: Where the object stands, for errors.

    Raises:
        UnsupportedConfigError: As `parse_components`.
    """
    reader = ConfigReader(config, scope)
    reader.constant("architectures", [variant.mtp_architecture])
    reader.refuse_other_members(("architectures",))


def parse_vision(
    config: Mapping[str, Any], variant: Variant = DENSE, *, scope: str = "vision"
) -> VisionConfig:
    """Parse the vision component's `config`.

    Args:
        config: The JSON object.
        variant: That of the text.
        scope: Where the object stands, for errors.

    Raises:
        UnsupportedConfigError: As `parse_components`.
    """
    reader = ConfigReader(config, scope)
    reader.constant("model_type", variant.vision_model_type)
    reader.refuse_other_members(("model_type", *VISION_SIZES))
    vision = VisionConfig(**{name: reader.integer(name) for name in VISION_SIZES})
    if vision.hidden_size % vision.num_heads:
        raise reader.refuse("num_heads", f"a divisor of hidden_size = {vision.hidden_size}")
    if vision.hidden_size // vision.num_heads % 4:
        raise reader.refuse("num_heads", "heads whose dimension is a multiple of 4")
    if math.isqrt(vision.num_position_embeddings) ** 2 != vision.num_position_embeddings:
        raise reader.refuse("num_position_embeddings", "a square number")
    return vision


def _text_variant(reader: ConfigReader) -> Variant:
    architectures = reader.values.get("architectures")
    if isinstance(architectures, list | tuple) and len(architectures) == 1:
        variant = VARIANTS.get(str(architectures[0]))
        if variant is not None:
            return variant
    raise reader.refuse("architectures", f"a list of one of {', '.join(VARIANTS)}")


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
