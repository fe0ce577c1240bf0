"""Where a Hugging Face checkpoint of the family keeps each logical parameter."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ninfer_runtime.models.architecture import SourceView
from ninfer_runtime.models.qwen3_5.config import (
    AttentionConfig,
    DeltaNetConfig,
    Mixer,
    ModelConfig,
    MoeConfig,
    TextConfig,
    VisionConfig,
)
from ninfer_runtime.models.qwen3_5.draft_parameters import draft_views
from ninfer_runtime.models.qwen3_5.moe_parameters import moe_views
from ninfer_runtime.models.qwen3_5.parameters import MTP_BLOCK, text_block, vision_block

MULTIMODAL_PREFIX = "model.language_model."
TEXT_ONLY_PREFIX = "model."
VISION_PREFIX = "model.visual."

MTP_PREFIX = "mtp."

NamedView = tuple[str, SourceView]


def source_views(config: ModelConfig, tensor_names: Collection[str]) -> dict[str, SourceView]:
    """The view of each parameter of `config`, in the order of the parameters' sources."""
    names = set(tensor_names)
    return dict(_views(config, text_prefix(names), names))


def text_prefix(tensor_names: Collection[str]) -> str:
    """Prefix of the text tensors.

    The embedding decides: a flat text configuration occurs with both prefixes. A checkpoint without
    one, such as a quantized one that holds nothing else, has layers that tell.
    """
    names = set(tensor_names)
    for prefix in (MULTIMODAL_PREFIX, TEXT_ONLY_PREFIX):
        if f"{prefix}embed_tokens.weight" in names:
            return prefix
    has_text_only = any(name.startswith(f"{TEXT_ONLY_PREFIX}layers.") for name in names)
    return TEXT_ONLY_PREFIX if has_text_only else MULTIMODAL_PREFIX


def tensor_component(tensor_name: str) -> str:
    """The component that a tensor belongs to; ``text`` if to no other."""
    if tensor_name.startswith(MTP_PREFIX):
        return "mtp"
    return "vision" if tensor_name.startswith(VISION_PREFIX) else "text"


def _views(config: ModelConfig, prefix: str, names: Collection[str]) -> Iterator[NamedView]:
    yield from _text_views(config.text, prefix, names)
    if config.mtp is not None:
        yield from _mtp_views(config.text, config.mtp, names)
    if config.vision is not None:
        yield from _vision_views(config.vision, config.text.hidden_size)
    for draft in config.drafts:
        yield from draft_views(draft, config.text)


def _text_views(text: TextConfig, prefix: str, names: Collection[str]) -> Iterator[NamedView]:
    table = (text.vocab_size, text.hidden_size)
    embedding = SourceView(f"{prefix}embed_tokens.weight", table)
    yield "text/token_embedding", embedding
    head = embedding if text.tie_word_embeddings else SourceView("lm_head.weight", table)
    yield "text/output_head", head
    yield "text/final_norm", SourceView(f"{prefix}norm.weight", (text.hidden_size,))
    for layer, mixer in enumerate(text.mixers):
        tensors = f"{prefix}layers.{layer}."
        yield from _block_views(text, text_block(layer), tensors, mixer, names)


def _block_views(
    text: TextConfig, block: str, prefix: str, mixer: Mixer, names: Collection[str]
) -> Iterator[NamedView]:
    D = text.hidden_size
    yield f"{block}input_norm", SourceView(f"{prefix}input_layernorm.weight", (D,))
    yield (
        f"{block}post_attention_norm",
        SourceView(f"{prefix}post_attention_layernorm.weight", (D,)),
    )
    if isinstance(mixer, AttentionConfig):
        yield from _attention_views(mixer, D, f"{block}attention/", f"{prefix}self_attn.")
    else:
        yield from _delta_net_views(mixer, D, f"{block}gdn/", f"{prefix}linear_attn.")
    if isinstance(text.feed_forward, MoeConfig):
        yield from moe_views(text.feed_forward, D, block, prefix, names)
        return
    inner = text.feed_forward.intermediate_size
    yield f"{block}mlp/gate", SourceView(f"{prefix}mlp.gate_proj.weight", (inner, D))
    yield f"{block}mlp/up", SourceView(f"{prefix}mlp.up_proj.weight", (inner, D))
    yield f"{block}mlp/down", SourceView(f"{prefix}mlp.down_proj.weight", (D, inner))


def _attention_views(
    attention: AttentionConfig, D: int, logical: str, prefix: str
) -> Iterator[NamedView]:
    """`q_proj` holds, head by head, the rows of the query and then those of its gate."""
    q_proj, q_shape = f"{prefix}q_proj.weight", (2 * attention.query_width, D)
    key_shape = (attention.key_width, D)
    HD = attention.head_dim
    starts = range(0, 2 * attention.query_width, 2 * HD)
    query_rows = tuple((start, start + HD) for start in starts)
    gate_rows = tuple((start + HD, start + 2 * HD) for start in starts)
    yield f"{logical}query", SourceView(q_proj, q_shape, rows=query_rows)
    yield f"{logical}gate", SourceView(q_proj, q_shape, rows=gate_rows)
    yield f"{logical}key", SourceView(f"{prefix}k_proj.weight", key_shape)
    yield f"{logical}value", SourceView(f"{prefix}v_proj.weight", key_shape)
    yield f"{logical}query_norm", SourceView(f"{prefix}q_norm.weight", (HD,))
    yield f"{logical}key_norm", SourceView(f"{prefix}k_norm.weight", (HD,))
    yield f"{logical}output", SourceView(f"{prefix}o_proj.weight", (D, attention.query_width))


def _delta_net_views(
    delta_net: DeltaNetConfig, D: int, logical: str, prefix: str
) -> Iterator[NamedView]:
    heads = delta_net.linear_num_value_heads
    C, key_width = delta_net.conv_channels, delta_net.key_width
    taps = delta_net.linear_conv_kernel_dim
    yield f"{logical}a_log", SourceView(f"{prefix}A_log", (heads,))
    yield f"{logical}dt_bias", SourceView(f"{prefix}dt_bias", (heads,))
    yield (
        f"{logical}convolution",
        SourceView(f"{prefix}conv1d.weight", (C, 1, taps), axes=(2, 0, 1)),
    )
    yield f"{logical}a_projection", SourceView(f"{prefix}in_proj_a.weight", (heads, D))
    yield f"{logical}b_projection", SourceView(f"{prefix}in_proj_b.weight", (heads, D))
    in_proj_qkv = f"{prefix}in_proj_qkv.weight"
    bounds = {
        "query": (0, key_width),
        "key": (key_width, 2 * key_width),
        "value": (2 * key_width, C),
    }
    for role, rows in bounds.items():
        yield f"{logical}{role}", SourceView(in_proj_qkv, (C, D), rows=(rows,))
    yield f"{logical}z", SourceView(f"{prefix}in_proj_z.weight", (delta_net.value_width, D))
    yield f"{logical}norm", SourceView(f"{prefix}norm.weight", (delta_net.linear_value_head_dim,))
    yield f"{logical}output", SourceView(f"{prefix}out_proj.weight", (D, delta_net.value_width))


def _mtp_views(
    text: TextConfig, attention: AttentionConfig, names: Collection[str]
) -> Iterator[NamedView]:
    D = text.hidden_size
    yield "mtp/input_projection", SourceView(f"{MTP_PREFIX}fc.weight", (D, 2 * D))
    yield "mtp/embedding_norm", SourceView(f"{MTP_PREFIX}pre_fc_norm_embedding.weight", (D,))
    yield "mtp/hidden_norm", SourceView(f"{MTP_PREFIX}pre_fc_norm_hidden.weight", (D,))
    yield "mtp/final_norm", SourceView(f"{MTP_PREFIX}norm.weight", (D,))
    yield from _block_views(text, MTP_BLOCK, f"{MTP_PREFIX}layers.0.", attention, names)


def _vision_views(vision: VisionConfig, text_hidden_size: int) -> Iterator[NamedView]:
    D, merged = vision.hidden_size, vision.merger_width
    patch = (D, 3, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    yield (
        "vision/patch_embedding",
        SourceView(f"{VISION_PREFIX}patch_embed.proj.weight", patch),
    )
    yield (
        "vision/patch_embedding_bias",
        SourceView(f"{VISION_PREFIX}patch_embed.proj.bias", (D,)),
    )
    yield (
        "vision/position_embedding",
        SourceView(f"{VISION_PREFIX}pos_embed.weight", (vision.num_position_embeddings, D)),
    )
    for layer in range(vision.depth):
        yield from _vision_block_views(vision, layer)
    merger = f"{VISION_PREFIX}merger."
    yield "vision/merger/norm_weight", SourceView(f"{merger}norm.weight", (D,))
    yield "vision/merger/norm_bias", SourceView(f"{merger}norm.bias", (D,))
    yield from _biased("vision/merger/fc1", f"{merger}linear_fc1", (merged, merged))
    yield from _biased("vision/merger/fc2", f"{merger}linear_fc2", (text_hidden_size, merged))


def _vision_block_views(vision: VisionConfig, layer: int) -> Iterator[NamedView]:
    D, inner = vision.hidden_size, vision.intermediate_size
    block, prefix = vision_block(layer), f"{VISION_PREFIX}blocks.{layer}."
    for norm in ("norm1", "norm2"):
        yield f"{block}{norm}_weight", SourceView(f"{prefix}{norm}.weight", (D,))
        yield f"{block}{norm}_bias", SourceView(f"{prefix}{norm}.bias", (D,))
    thirds = {"query": (0, D), "key": (D, 2 * D), "value": (2 * D, 3 * D)}
    for role, rows in thirds.items():
        weight = SourceView(f"{prefix}attn.qkv.weight", (3 * D, D), rows=(rows,))
        yield f"{block}attention/{role}", weight
    for role, rows in thirds.items():
        bias = SourceView(f"{prefix}attn.qkv.bias", (3 * D,), rows=(rows,))
        yield f"{block}attention/{role}_bias", bias
    yield from _biased(f"{block}attention/output", f"{prefix}attn.proj", (D, D))
    yield from _biased(f"{block}mlp/fc1", f"{prefix}mlp.linear_fc1", (inner, D))
    yield from _biased(f"{block}mlp/fc2", f"{prefix}mlp.linear_fc2", (D, inner))


def _biased(logical: str, module: str, shape: tuple[int, int]) -> Iterator[NamedView]:
    yield logical, SourceView(f"{module}.weight", shape)
    yield f"{logical}_bias", SourceView(f"{module}.bias", shape[:1])
