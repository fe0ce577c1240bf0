"""The logical parameters of the family, in canonical order, and which of them may share a parent.

Letters of the shapes: V vocabulary, D hidden size. Matrices are
[output rows, input columns].
"""

from __future__ import annotations

from collections.abc import Iterator

from ninfer_runtime.models.architecture import LogicalParameter
from ninfer_runtime.models.qwen3_5.config import (
    AttentionConfig,
    DeltaNetConfig,
    FeedForward,
    Mixer,
    ModelConfig,
    MoeConfig,
    TextConfig,
    VisionConfig,
)
from ninfer_runtime.models.qwen3_5.draft_parameters import draft_packing_groups, draft_parameters
from ninfer_runtime.models.qwen3_5.moe_parameters import moe_packing_groups, moe_parameters

MTP_BLOCK = "mtp/layers/0/"


def text_block(layer: int) -> str:
    """Prefix of the parameter names of one text layer."""
    return f"text/layers/{layer}/"


def vision_block(layer: int) -> str:
    """Prefix of the parameter names of one vision layer."""
    return f"vision/layers/{layer}/"


def parameters(config: ModelConfig) -> tuple[LogicalParameter, ...]:
    """All parameters of the selected components."""
    return tuple(_parameters(config))


def _parameters(config: ModelConfig) -> Iterator[LogicalParameter]:
    yield from _text_parameters(config.text, drafters(config))
    if config.mtp is not None:
        yield from _mtp_parameters(config.text, config.mtp)
    if config.vision is not None:
        yield from _vision_parameters(config.vision, config.text.hidden_size)
    for draft in config.drafts:
        yield from draft_parameters(draft, config.text)


def drafters(config: ModelConfig) -> tuple[str, ...]:
    """The selected components that propose tokens through the output head."""
    mtp = ("mtp",) if config.mtp is not None else ()
    return (*mtp, *(draft.component for draft in config.drafts))


def _text_parameters(text: TextConfig, drafters: tuple[str, ...]) -> Iterator[LogicalParameter]:
    V, D = text.vocab_size, text.hidden_size
    head_inputs = tuple(f"{name}/final_hidden" for name in ("text", *drafters))
    yield LogicalParameter("text/token_embedding", (V, D))
    yield LogicalParameter("text/output_head", (V, D), head_inputs)
    yield LogicalParameter("text/final_norm", (D,))
    for layer, mixer in enumerate(text.mixers):
        yield from _block_parameters(text, text_block(layer), mixer)


def _block_parameters(text: TextConfig, block: str, mixer: Mixer) -> Iterator[LogicalParameter]:
    D = text.hidden_size
    yield LogicalParameter(f"{block}input_norm", (D,))
    yield LogicalParameter(f"{block}post_attention_norm", (D,))
    if isinstance(mixer, AttentionConfig):
        yield from _attention_parameters(mixer, D, block)
    else:
        yield from _delta_net_parameters(mixer, D, block)
    if isinstance(text.feed_forward, MoeConfig):
        yield from moe_parameters(text.feed_forward, D, block)
    else:
        yield from _mlp_parameters(text.feed_forward.intermediate_size, D, block)


def _mlp_parameters(inner: int, D: int, block: str) -> Iterator[LogicalParameter]:
    ffn_input = (f"{block}ffn_input",)
    yield LogicalParameter(f"{block}mlp/gate", (inner, D), ffn_input)
    yield LogicalParameter(f"{block}mlp/up", (inner, D), ffn_input)
    yield LogicalParameter(f"{block}mlp/down", (D, inner), (f"{block}mlp/product",))


def _attention_parameters(
    attention: AttentionConfig, D: int, block: str
) -> Iterator[LogicalParameter]:
    mixer_input = (f"{block}mixer_input",)
    query, key = (attention.query_width, D), (attention.key_width, D)
    yield LogicalParameter(f"{block}attention/query", query, mixer_input)
    yield LogicalParameter(f"{block}attention/gate", query, mixer_input)
    yield LogicalParameter(f"{block}attention/key", key, mixer_input)
    yield LogicalParameter(f"{block}attention/value", key, mixer_input)
    yield LogicalParameter(f"{block}attention/query_norm", (attention.head_dim,))
    yield LogicalParameter(f"{block}attention/key_norm", (attention.head_dim,))
    yield LogicalParameter(
        f"{block}attention/output",
        (D, attention.query_width),
        (f"{block}attention/gated_output",),
    )


def _delta_net_parameters(
    delta_net: DeltaNetConfig, D: int, block: str
) -> Iterator[LogicalParameter]:
    mixer_input = (f"{block}mixer_input",)
    heads = delta_net.linear_num_value_heads
    key, value = (delta_net.key_width, D), (delta_net.value_width, D)
    taps = (delta_net.linear_conv_kernel_dim, delta_net.conv_channels)
    yield LogicalParameter(f"{block}gdn/a_log", (heads,), storage_format="fp32")
    yield LogicalParameter(f"{block}gdn/dt_bias", (heads,), storage_format="fp32")
    yield LogicalParameter(f"{block}gdn/convolution", taps)
    yield LogicalParameter(f"{block}gdn/a_projection", (heads, D), mixer_input)
    yield LogicalParameter(f"{block}gdn/b_projection", (heads, D), mixer_input)
    yield LogicalParameter(f"{block}gdn/query", key, mixer_input)
    yield LogicalParameter(f"{block}gdn/key", key, mixer_input)
    yield LogicalParameter(f"{block}gdn/value", value, mixer_input)
    yield LogicalParameter(f"{block}gdn/z", value, mixer_input)
    yield LogicalParameter(f"{block}gdn/norm", (delta_net.linear_value_head_dim,))
    yield LogicalParameter(
        f"{block}gdn/output", (D, delta_net.value_width), (f"{block}gdn/gated_output",)
    )


def _mtp_parameters(text: TextConfig, attention: AttentionConfig) -> Iterator[LogicalParameter]:
    D = text.hidden_size
    yield LogicalParameter("mtp/input_projection", (D, 2 * D), ("mtp/stem_input",))
    yield LogicalParameter("mtp/embedding_norm", (D,))
    yield LogicalParameter("mtp/hidden_norm", (D,))
    yield LogicalParameter("mtp/final_norm", (D,))
    yield from _block_parameters(text, MTP_BLOCK, attention)


def _vision_parameters(vision: VisionConfig, text_hidden_size: int) -> Iterator[LogicalParameter]:
    D = vision.hidden_size
    yield LogicalParameter(
        "vision/patch_embedding", (D, vision.patch_width), ("vision/patch_input",)
    )
    yield LogicalParameter("vision/patch_embedding_bias", (D,))
    yield LogicalParameter("vision/position_embedding", (vision.num_position_embeddings, D))
    for layer in range(vision.depth):
        yield from _vision_block_parameters(vision, vision_block(layer))
    merged = vision.merger_width
    yield LogicalParameter("vision/merger/norm_weight", (D,))
    yield LogicalParameter("vision/merger/norm_bias", (D,))
    yield from _biased("vision/merger/fc1", (merged, merged), "vision/merger/input")
    yield from _biased("vision/merger/fc2", (text_hidden_size, merged), "vision/merger/activation")


def _vision_block_parameters(vision: VisionConfig, block: str) -> Iterator[LogicalParameter]:
    D, inner = vision.hidden_size, vision.intermediate_size
    for norm in ("norm1", "norm2"):
        yield LogicalParameter(f"{block}{norm}_weight", (D,))
        yield LogicalParameter(f"{block}{norm}_bias", (D,))
    for role in ("query", "key", "value"):
        yield LogicalParameter(f"{block}attention/{role}", (D, D), (f"{block}attention_input",))
    for role in ("query", "key", "value"):
        yield LogicalParameter(f"{block}attention/{role}_bias", (D,))
    yield from _biased(f"{block}attention/output", (D, D), f"{block}attention_output")
    yield from _biased(f"{block}mlp/fc1", (inner, D), f"{block}mlp_input")
    yield from _biased(f"{block}mlp/fc2", (D, inner), f"{block}mlp_activation")


def _biased(name: str, shape: tuple[int, int], input_name: str) -> Iterator[LogicalParameter]:
    yield LogicalParameter(name, shape, (input_name,))
    yield LogicalParameter(f"{name}_bias", shape[:1])


def packing_groups(config: ModelConfig) -> tuple[tuple[str, ...], ...]:
    """Names that may share one parent object, in row order; a wide group precedes its parts."""
    return tuple(_packing_groups(config))


def _packing_groups(config: ModelConfig) -> Iterator[tuple[str, ...]]:
    for layer, mixer in enumerate(config.text.mixers):
        yield from _block_groups(config.text.feed_forward, text_block(layer), mixer)
    if config.mtp is not None:
        yield from _block_groups(config.text.feed_forward, MTP_BLOCK, config.mtp)
    if config.vision is not None:
        for layer in range(config.vision.depth):
            attention = f"{vision_block(layer)}attention/"
            yield _named(attention, "query", "key", "value")
            yield _named(attention, "query_bias", "key_bias", "value_bias")
    for draft in config.drafts:
        yield from draft_packing_groups(draft)


def _block_groups(feed_forward: FeedForward, block: str, mixer: Mixer) -> Iterator[tuple[str, ...]]:
    if isinstance(mixer, AttentionConfig):
        attention = f"{block}attention/"
        yield _named(attention, "query", "key", "gate", "value")
        yield _named(attention, "query", "key")
        yield _named(attention, "gate", "value")
    else:
        gdn = f"{block}gdn/"
        yield _named(gdn, "query", "key", "value", "z")
        yield _named(gdn, "query", "key")
        yield _named(gdn, "value", "z")
        yield _named(gdn, "a_projection", "b_projection")
    if isinstance(feed_forward, MoeConfig):
        yield from moe_packing_groups(feed_forward, block)
    else:
        yield _named(f"{block}mlp/", "gate", "up")


def _named(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(prefix + name for name in names)
