"""Objects of the language model and of multi-token prediction (specification, section 11.3).

Letters of the shapes: V vocabulary, R rows of the proposal head, D hidden size, Q and K rows of
the attention's query and key.
"""

from __future__ import annotations

from collections.abc import Iterator

from ninfer_format.legacy.geometry import ExpertGeometry, TextGeometry
from ninfer_format.legacy.object_rows import Block, ObjectRow

MTP_LAYER = Block("mtp/layer/", "mtp/layers/0/")


def text_layer(layer: int) -> Block:
    """The block of one layer of the language model."""
    return Block(f"text/layers/{layer}/", f"text/layers/{layer}/")


def decoder_rows(text: TextGeometry) -> Iterator[ObjectRow]:
    """Every object that the decoder of a published model may have.

    Models pack parameters differently, so some parameters stand in several rows.
    """
    yield from _root_rows(text)
    for layer, layer_type in enumerate(text.layer_types):
        yield from _layer_rows(text, text_layer(layer), layer_type)
    yield from _layer_rows(text, MTP_LAYER, "full_attention")


def _root_rows(text: TextGeometry) -> Iterator[ObjectRow]:
    V, D, R = text.vocab_size, text.hidden_size, text.proposal_rows
    root = Block("", "")
    yield root.same("text/token_embedding", V, D)
    yield root.same("text/output_head", V, D)
    yield root.same("text/final_norm", D)
    yield root.same("text/draft_head", R, D, parameter="proposal/head")
    yield root.same("text/draft_head_token_ids", R, parameter="proposal/token_ids")
    yield root.same("mtp/input_projection", D, 2 * D)
    yield root.same("mtp/embedding_norm", D)
    yield root.same("mtp/hidden_norm", D)
    yield root.same("mtp/final_norm", D)


def _layer_rows(text: TextGeometry, block: Block, layer_type: str) -> Iterator[ObjectRow]:
    yield block.same("input_norm", text.hidden_size)
    yield block.same("post_attention_norm", text.hidden_size)
    if layer_type == "full_attention":
        yield from _attention_rows(text, block)
    else:
        yield from _delta_net_rows(text, block)
    if isinstance(text.feed_forward, ExpertGeometry):
        yield from _expert_rows(text.feed_forward, text.hidden_size, block)
    else:
        yield from _mlp_rows(text.feed_forward, text.hidden_size, block)


def _attention_rows(text: TextGeometry, block: Block) -> Iterator[ObjectRow]:
    D, Q, K = text.hidden_size, text.query_rows, text.key_rows
    query, key = {"attention/query": Q}, {"attention/key": K}
    gate, value = {"attention/gate": Q}, {"attention/value": K}
    yield block.same("attention/query_norm", text.head_dim)
    yield block.same("attention/key_norm", text.head_dim)
    yield block.same("attention/output", D, Q)
    yield block.split("attention/query_key", query | key, D)
    yield block.split("attention/gate_value", gate | value, D)
    yield block.split("attention/query_key_gate_value", query | key | gate | value, D)


def _delta_net_rows(text: TextGeometry, block: Block) -> Iterator[ObjectRow]:
    D, heads = text.hidden_size, text.linear_num_value_heads
    keys, values = text.linear_key_rows, text.linear_value_rows
    query_key = {"gdn/query": keys, "gdn/key": keys}
    value_z = {"gdn/value": values, "gdn/z": values}
    yield block.split("gdn/query_key", query_key, D)
    yield block.split("gdn/value_z", value_z, D)
    yield block.split("gdn/query_key_value_z", query_key | value_z, D)
    controls = {"gdn/a_projection": heads, "gdn/b_projection": heads}
    yield block.split("gdn/a_b_projection", controls, D)
    yield block.same("gdn/a_projection", heads, D)
    yield block.same("gdn/b_projection", heads, D)
    yield block.same("gdn/a_log", heads)
    yield block.same("gdn/dt_bias", heads)
    yield block.same("gdn/norm", text.linear_value_head_dim)
    yield block.same("gdn/convolution", text.linear_conv_kernel_dim, 2 * keys + values)
    yield block.same("gdn/output", D, values)


def _mlp_rows(inner: int, D: int, block: Block) -> Iterator[ObjectRow]:
    yield block.split("mlp/gate_up", {"mlp/gate": inner, "mlp/up": inner}, D)
    yield block.same("mlp/down", D, inner)


def _expert_rows(moe: ExpertGeometry, D: int, block: Block) -> Iterator[ObjectRow]:
    inner, shared = moe.moe_intermediate_size, moe.shared_expert_intermediate_size
    experts = [f"moe/experts/{expert}" for expert in range(moe.num_experts)]
    router = {"moe/router": moe.num_experts, "moe/shared_score": 1}
    yield block.split("moe/router_shared_gate", router, D)
    gate_up = {f"{expert}/{role}": inner for expert in experts for role in ("gate", "up")}
    yield block.split("moe/routed_gate_up", gate_up, D)
    yield block.split("moe/routed_down", {f"{expert}/down": D for expert in experts}, inner)
    shared_gate_up = {"moe/shared/gate": shared, "moe/shared/up": shared}
    yield block.split("moe/shared_gate_up", shared_gate_up, D)
    yield block.same("moe/shared_down", D, shared, parameter="moe/shared/down")
