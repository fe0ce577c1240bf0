"""Components of the published models (container specification, section 11.2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from ninfer_format.container.schema import Component, Proposal
from ninfer_format.errors import ArtifactError
from ninfer_format.legacy.geometry import (
    DraftGeometry,
    ExpertGeometry,
    TextGeometry,
    VisionGeometry,
)

RESOURCE_PREFIX = "frontend/"
TEXT_ROLES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
VISION_ROLES = ("preprocessor_config.json", "video_preprocessor_config.json")


def published_components(
    text: TextGeometry,
    vision: VisionGeometry,
    drafts: Mapping[str, DraftGeometry],
    resource_ids: Collection[str],
) -> dict[str, Component]:
    """The components of a published model.

    Args:
        text: Sizes of the language model.
        vision: Sizes of the vision tower.
        drafts: Sizes of its drafters, by component.
        resource_ids: Names of all resource objects.

    Raises:
        ArtifactError: `objects`: other resources than the six that each published model has.
    """
    expected = {RESOURCE_PREFIX + role for role in (*TEXT_ROLES, *VISION_ROLES)}
    if set(resource_ids) != expected:
        raise ArtifactError(
            "objects",
            "wrong resources",
            expected=", ".join(sorted(expected)),
            found=", ".join(sorted(resource_ids)) or "none",
        )
    is_moe = isinstance(text.feed_forward, ExpertGeometry)
    mtp = {"architectures": ["Qwen3_5MoeMTP" if is_moe else "Qwen3_5MTP"]}
    vision_type = "qwen3_5_moe_vision" if is_moe else "qwen3_5_vision"
    vision_config = {"model_type": vision_type, **asdict(vision)}
    return {
        "text": Component(
            _text_config(text),
            resources=_resources(TEXT_ROLES),
            proposal=Proposal("indexed", text.proposal_rows),
        ),
        "vision": Component(vision_config, "text", _resources(VISION_ROLES)),
        "mtp": Component(mtp, "text"),
        **{name: Component(_draft_config(draft), "text") for name, draft in drafts.items()},
    }


def _resources(roles: tuple[str, ...]) -> dict[str, str]:
    return {role: RESOURCE_PREFIX + role for role in roles}


def _binary32(value: float) -> float:
    """A real as the published files spell it: rounded to binary32 first."""
    return float(np.float32(value))


def _text_config(text: TextGeometry) -> dict[str, Any]:
    is_moe = isinstance(text.feed_forward, ExpertGeometry)
    family = "Qwen3_5Moe" if is_moe else "Qwen3_5"
    return {
        "architectures": [f"{family}ForCausalLM"],
        "model_type": "qwen3_5_moe_text" if is_moe else "qwen3_5_text",
        "hidden_size": text.hidden_size,
        "vocab_size": text.vocab_size,
        "tie_word_embeddings": False,
        "num_hidden_layers": text.num_hidden_layers,
        "layer_types": text.layer_types,
        "max_position_embeddings": text.max_position_embeddings,
        "rms_norm_eps": _binary32(1e-6),
        "num_attention_heads": text.num_attention_heads,
        "num_key_value_heads": text.num_key_value_heads,
        "head_dim": text.head_dim,
        "rope_parameters": {
            "rope_theta": _binary32(1e7),
            "partial_rotary_factor": _binary32(0.25),
            "mrope_section": [11, 11, 10],
        },
        "linear_num_key_heads": text.linear_num_key_heads,
        "linear_key_head_dim": text.linear_key_head_dim,
        "linear_num_value_heads": text.linear_num_value_heads,
        "linear_value_head_dim": text.linear_value_head_dim,
        "linear_conv_kernel_dim": text.linear_conv_kernel_dim,
        **_feed_forward_config(text.feed_forward),
    }


def _feed_forward_config(feed_forward: int | ExpertGeometry) -> dict[str, Any]:
    if isinstance(feed_forward, ExpertGeometry):
        return asdict(feed_forward)
    return {"intermediate_size": feed_forward}


def _draft_config(draft: DraftGeometry) -> dict[str, Any]:
    return {
        "architectures": [draft.architecture],
        "model_type": "qwen3",
        "intermediate_size": draft.intermediate_size,
        "num_hidden_layers": len(draft.layer_types),
        "num_attention_heads": draft.num_attention_heads,
        "num_key_value_heads": draft.num_key_value_heads,
        "head_dim": draft.head_dim,
        "layer_types": list(draft.layer_types),
        "sliding_window": draft.sliding_window,
        "rms_norm_eps": _binary32(1e-6),
        "rope_parameters": {"rope_theta": _binary32(1e7)},
        "max_position_embeddings": draft.max_position_embeddings,
        "dflash_config": {
            "target_layer_ids": list(draft.target_layer_ids),
            "mask_token_id": draft.mask_token_id,
            **({} if draft.selector is None else asdict(draft.selector)),
        },
    }
