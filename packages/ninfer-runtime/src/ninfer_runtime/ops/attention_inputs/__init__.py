"""Queries, keys and values of new tokens made ready for `paged_attention`."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """Heads of new tokens as projections give them, with what makes them ready for attention.

    Attributes:
        query: [B, C, H, HD], fp32 or bf16, possibly strided.
        key: [B, C, KH, HD], fp32 or bf16, possibly strided.
        value: As `key`.
        query_weight: [HD], fp32 or bf16: of the norm of queries.
        key_weight: As `query_weight`, of keys.
        cos: [B, C, R], fp32, from `rotary_table`; 2R ≤ HD.
        sin: As `cos`.
        eps: Added to the mean of squares; positive.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    query_weight: Tensor
    key_weight: Tensor
    cos: Tensor
    sin: Tensor
    eps: float

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, in the order of the attributes."""
        heads = (self.query, self.key, self.value)
        return (*heads, self.query_weight, self.key_weight, self.cos, self.sin)

    def check(self, op: str, pages: KVPages) -> None:
        """Refuse shapes and dtypes other than above, for pages of KH key heads of HD components.

        Raises:
            OpArgumentError: A shape or dtype is not as above.
        """
        check_rank(op, "query", self.query, "B C H HD")
        check_rank(op, "cos", self.cos, "B C R")
        B, C, H, _ = self.query.shape
        KH, HD, R = pages.num_key_value_heads, pages.head_dim, self.cos.shape[2]
        if 2 * R > HD:
            raise OpArgumentError(op, "cos", expected=f"at most {HD // 2} pairs", found=R)
        shapes = (
            ("query", self.query, (B, C, H, HD)),
            ("key", self.key, (B, C, KH, HD)),
            ("value", self.value, (B, C, KH, HD)),
            ("query_weight", self.query_weight, (HD,)),
            ("key_weight", self.key_weight, (HD,)),
        )
        for argument, tensor, shape in shapes:
            check_shape(op, argument, tensor, shape)
            check_dtype(op, argument, tensor)
        for argument, tensor in (("cos", self.cos), ("sin", self.sin)):
            check_shape(op, argument, tensor, (B, C, R))
            check_dtype(op, argument, tensor, (DType.FP32,))


def attention_inputs(
    inputs: AttentionInputs, pages: KVPages, spans: Spans, *, out: Tensor | None = None
) -> Tensor:
    """Normalise and rotate queries and keys, and append keys and values to the pages.

    Each head of queries and keys becomes ``rotary(x / sqrt(mean(x²) + eps) · (1 + weight))``, where
    the first 2R components are rotated as by `rotary`; evaluated in float32 and rounded once: the
    query to the dtype of the result, the key to bf16. The value is rounded to bf16. From these the
    rows of the pages are coded; fp32 pages take keys and values that are not rounded. New token c of
    sequence b goes to position before[b] + c. Rows c ≥ columns[b] of the result are zero, and nothing
    of them is written to the pages.

    Args:
        inputs: Heads of B sequences, C new tokens at most.
        pages: Of KH key heads of HD components; no two sequences write to one page.
        spans: Where the sequences stand.
        out: [B, C, H, HD], fp32 or bf16; shares no memory with the inputs. By default a new tensor
            of the dtype of the query.

    Returns:
        The queries for `paged_attention`.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
        UnsupportedOpError: The device has no kernel for these dtypes or strides.
    """
    op = "attention_inputs"
    inputs.check(op, pages)
    spans.check(op, inputs.query.shape[0])
    out = output(op, out, inputs.query)
    call(op, *inputs.tensors, *spans.tensors, out, pages=pages, eps=inputs.eps)
    return out
