"""Gated causal attention of new tokens over the paged caches of several sequences."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.kv.pages import KVPages
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape, product_input
from ninfer_runtime.ops.attention_inputs import AttentionInputs
from ninfer_runtime.ops.paged_arguments import Spans
from ninfer_runtime.ops.registry import call, register

register("paged_attention", "cpu", "ninfer_runtime.ops.paged_attention.reference:paged_attention")
register("paged_attention", "cuda", "ninfer_runtime.ops.paged_attention.cuda:paged_attention")


def paged_attention(
    query: Tensor | AttentionInputs,
    gate: Tensor,
    pages: KVPages,
    spans: Spans,
    *,
    scale: float,
    out: Tensor | None = None,
) -> Tensor:
    """Attend from each new token to all positions up to its own, and gate the result.

    New token c of sequence b stands at position p = before[b] + c. Its key and value are in the pages
    already, or are put there from heads that are not ready: then this is `attention_inputs` followed by
    attention, which a GPU computes in one for few rows. With j = h // (H / KH)::

        y[b·C + c, h] = σ(gate[b, c, h]) ⊙ Σ_s softmax_s(scale · query[b, c, h] · key[s, j]) · value[s, j]

    over s ≤ p, evaluated in float32 from the decoded keys and values and rounded once. Where a format
    stores transformed keys, the query is transformed as well; where it stores transformed values, the
    sum is transformed back. A GPU rounds to binary16 the weights, the values with their scales (or the
    weights with these, for few rows, to 2^-29 at worst), the transformed queries (scaled by a power of
    two where they would leave its range) and, for many rows, the transformed keys with their scales:
    values and these keys stay below 65,504. Rows
    c ≥ columns[b] of the result are zero. A row does not depend on the other sequences of the call.

    Args:
        query: [B, C, H, HD], fp32 or bf16, possibly strided; H is a multiple of KH, HD that of the
            pages. Or all heads as projections give them.
        gate: [B, C, H, HD], fp32 or bf16, possibly strided.
        pages: Of KH key heads.
        spans: Where the B sequences stand, C new tokens at most.
        scale: Factor of the scores, usually 1 / 16.
        out: [B·C, H·HD], fp32 or bf16; shares no memory with the inputs. By default a new tensor of
            the dtype of `query`, made for products (`ProductInput`). Packed as f16 it is divided by a
            power of two: an element may then change by at most 2^-19.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
        UnsupportedOpError: The device has no kernel for this format, these dtypes or strides.
    """
    op = "paged_attention"
    inputs = query if isinstance(query, AttentionInputs) else None
    if isinstance(query, AttentionInputs):
        query.check(op, pages)
        query = query.query
    check_rank(op, "query", query, "B C H HD")
    B, C, H, HD = query.shape
    KH = pages.num_key_value_heads
    check_dtype(op, "query", query)
    check_dtype(op, "gate", gate)
    check_shape(op, "query", query, (B, C, H, pages.head_dim))
    check_shape(op, "gate", gate, query.shape)
    if KH < 1 or H % KH:
        raise OpArgumentError(op, "query", expected=f"a multiple of {KH} heads", found=H)
    spans.check(op, B)
    out = product_input(op, out, query, (B * C, H * HD))
    call(op, query, gate, *spans.tensors, out, pages=pages, scale=scale, inputs=inputs)
    return out
