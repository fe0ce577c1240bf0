"""Which tensors of a GGUF file a Hugging Face tensor of the qwen3_5 family is made of, and how.

llama.cpp's converter changes values on the way into the file: one is added to every norm but that
of Gated DeltaNet, the decay is stored as ``-exp(A_log)``, and value heads are put in another order.
What is here undoes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

TEXT = "model.language_model."
VISION = "model.visual."
MTP = "mtp."

Change = Literal["none", "minus_one", "decay"]
Heads = Literal["none", "rows", "row_scalars", "mixed_rows", "columns"]


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """How one tensor is made.

    Attributes:
        parts: Tensors of the file; several are stacked on a new axis 2.
        change: What is done to the values: one is taken off, or ``log(-x)``.
        heads: Where value heads are put back in order: all rows, rows of one element per head, the
            rows after those of queries and keys, or columns.
        channel_axis: Whether an axis of length 1 is put before the last.
    """

    parts: tuple[str, ...]
    change: Change = "none"
    heads: Heads = "none"
    channel_axis: bool = False


def gguf_tensors(text: Mapping[str, Any], vision_depth: int) -> dict[str, GgufTensor]:
    """All tensors that files of the family may have, by Hugging Face name.

    Args:
        text: Configuration of the text component.
        vision_depth: Number of blocks of the vision tower.
    """
    return dict([*_text(text), *_mtp(text["num_hidden_layers"]), *_vision(vision_depth)])


_Named = Iterator[tuple[str, GgufTensor]]


def _text(text: Mapping[str, Any]) -> _Named:
    yield f"{TEXT}embed_tokens.weight", GgufTensor(("token_embd.weight",))
    yield "lm_head.weight", GgufTensor(("output.weight",))
    yield f"{TEXT}norm.weight", GgufTensor(("output_norm.weight",), "minus_one")
    for layer in range(text["num_hidden_layers"]):
        yield from _block(f"{TEXT}layers.{layer}.", f"blk.{layer}.")
        yield from _delta_net(f"{TEXT}layers.{layer}.linear_attn.", f"blk.{layer}.")


def _block(hf: str, gguf: str) -> _Named:
    """Norms, attention and MLP of a layer; a layer without attention has no such tensors."""
    for ours, theirs in (
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "post_attention_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
    ):
        yield f"{hf}{ours}.weight", GgufTensor((f"{gguf}{theirs}.weight",), "minus_one")
    for ours, theirs in (
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ):
        yield f"{hf}{ours}.weight", GgufTensor((f"{gguf}{theirs}.weight",))


def _delta_net(hf: str, gguf: str) -> _Named:
    yield f"{hf}in_proj_qkv.weight", GgufTensor((f"{gguf}attn_qkv.weight",), heads="mixed_rows")
    yield f"{hf}in_proj_z.weight", GgufTensor((f"{gguf}attn_gate.weight",), heads="rows")
    yield f"{hf}in_proj_a.weight", GgufTensor((f"{gguf}ssm_alpha.weight",), heads="row_scalars")
    yield f"{hf}in_proj_b.weight", GgufTensor((f"{gguf}ssm_beta.weight",), heads="row_scalars")
    yield f"{hf}dt_bias", GgufTensor((f"{gguf}ssm_dt.bias",), heads="row_scalars")
    yield f"{hf}A_log", GgufTensor((f"{gguf}ssm_a",), "decay", "row_scalars")
    convolution = GgufTensor((f"{gguf}ssm_conv1d.weight",), "none", "mixed_rows", True)
    yield f"{hf}conv1d.weight", convolution
    yield f"{hf}norm.weight", GgufTensor((f"{gguf}ssm_norm.weight",))
    yield f"{hf}out_proj.weight", GgufTensor((f"{gguf}ssm_out.weight",), heads="columns")


def _mtp(layer: int) -> _Named:
    """The layer for multi-token prediction is the block after the last."""
    gguf = f"blk.{layer}."
    yield f"{MTP}fc.weight", GgufTensor((f"{gguf}nextn.eh_proj.weight",))
    for ours, theirs in (
        ("pre_fc_norm_embedding", "enorm"),
        ("pre_fc_norm_hidden", "hnorm"),
        ("norm", "shared_head_norm"),
    ):
        yield f"{MTP}{ours}.weight", GgufTensor((f"{gguf}nextn.{theirs}.weight",), "minus_one")
    yield from _block(f"{MTP}layers.0.", gguf)


def _vision(depth: int) -> _Named:
    kernel = ("v.patch_embd.weight", "v.patch_embd.weight.1")
    yield f"{VISION}patch_embed.proj.weight", GgufTensor(kernel)
    yield f"{VISION}patch_embed.proj.bias", GgufTensor(("v.patch_embd.bias",))
    yield f"{VISION}pos_embed.weight", GgufTensor(("v.position_embd.weight",))
    pairs = [
        (f"blocks.{block}.{ours}", f"v.blk.{block}.{theirs}")
        for block in range(depth)
        for ours, theirs in (
            ("norm1", "ln1"),
            ("norm2", "ln2"),
            ("attn.qkv", "attn_qkv"),
            ("attn.proj", "attn_out"),
            ("mlp.linear_fc1", "ffn_up"),
            ("mlp.linear_fc2", "ffn_down"),
        )
    ]
    pairs += [
        ("merger.norm", "v.post_ln"),
        ("merger.linear_fc1", "mm.0"),
        ("merger.linear_fc2", "mm.2"),
    ]
    for ours, theirs in pairs:
        for part in ("weight", "bias"):
            yield f"{VISION}{ours}.{part}", GgufTensor((f"{theirs}.{part}",))
