"""Queries, keys and values of new tokens made ready for `paged_attention`."""

from __future__ import annotations

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.kv.pages import KVPages
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape, output
from ninfer_runtime.ops.paged_arguments import Spans
from ninfer_runtime.ops.registry import call, register

register(
    "attention_inputs", "cpu", "ninfer_runtime.ops.attention_inputs.reference:attention_inputs"
)
register("attention_inputs", "cuda", "ninfer_runtime.ops.attention_inputs.cuda:attention_inputs")


def attention_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    pages: KVPages,
    spans: Spans,
    *,
    eps: float,
    out: Tensor | None = None,
) -> Tensor:
    """Normalise and rotate queries and keys, and append keys and values to the pages.

    Each head of `query` and `key` becomes ``rotary(x / sqrt(mean(x²) + eps) · (1 + weight))``, where
    the first 2R components are rotated as by `rotary`; evaluated in float32 and rounded once: the
    query to the dtype of the result, the key to bf16. The value is rounded to bf16. From these the
    rows of the pages are coded; fp32 pages take keys and values that are not rounded. New token c of
    sequence b goes to position before[b] + c. Rows c ≥ columns[b] of the result are zero, and nothing
    of them is written to the pages.

    Args:
        query: [B, C, H, HD], fp32 or bf16, possibly strided.
        key: [B, C, KH, HD], fp32 or bf16, possibly strided.
        value: As `key`.
        query_weight: [HD], fp32 or bf16.
        key_weight: As `query_weight`.
        cos: [B, C, R], fp32, from `rotary_table`; 2R ≤ HD.
        sin: As `cos`.
        pages: Of KH key heads of HD components; no two sequences write to one page.
        spans: Where the B sequences stand, C new tokens at most.
        eps: Added to the mean of squares; positive.
        out: [B, C, H, HD], fp32 or bf16; shares no memory with the inputs. By default a new tensor
            of the dtype of `query`.

    Returns:
        The queries for `paged_attention`.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
        UnsupportedOpError: The device has no kernel for these dtypes or strides.
    """
    op = "attention_inputs"
    check_rank(op, "query", query, "B C H HD")
    check_rank(op, "cos", cos, "B C R")
    B, C, H, _ = query.shape
    KH, HD, R = pages.num_key_value_heads, pages.head_dim, cos.shape[2]
    if 2 * R > HD:
        raise OpArgumentError(op, "cos", expected=f"at most {HD // 2} pairs", found=R)
    shapes = (
        ("query", query, (B, C, H, HD)),
        ("key", key, (B, C, KH, HD)),
        ("value", value, (B, C, KH, HD)),
        ("query_weight", query_weight, (HD,)),
        ("key_weight", key_weight, (HD,)),
    )
    for argument, tensor, shape in shapes:
        check_shape(op, argument, tensor, shape)
        check_dtype(op, argument, tensor)
    for argument, tensor in (("cos", cos), ("sin", sin)):
        check_shape(op, argument, tensor, (B, C, R))
        check_dtype(op, argument, tensor, (DType.FP32,))
    spans.check(op, B)
    out = output(op, out, query)
    tensors = (query, key, value, query_weight, key_weight, cos, sin)
    call(op, *tensors, *spans.tensors, out, pages=pages, eps=eps)
    return out
