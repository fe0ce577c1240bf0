"""Choice of a token from each row of logits."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape
from ninfer_runtime.ops.registry import call, register

register("sample", "cpu", "ninfer_runtime.ops.sample.reference:sample")
register("sample", "cuda", "ninfer_runtime.ops.sample.cuda:sample")

MASK_BITS = 32
"""Tokens of a word of a mask."""


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How each of R rows is sampled (engine specification, section 8).

    Attributes:
        temperature: [R], fp32; 0 or less takes the best token.
        top_k: [R], int32; 0 and numbers above 20 mean 20.
        top_p: [R], fp32, in 0..1.
        min_p: [R], fp32, in 0..1.
        presence_penalty: [R], fp32.
        frequency_penalty: [R], fp32.
        seed: [R, 2], int32: the lower and the upper word of the request's seed.
        position: [R], int32: sequence position of the row's column.
        purpose: [R], int32: a `Purpose`.
        counts_row: [R], int32: row of `counts` for the penalties, -1 for none.
        mask_row: [R], int32: row of `masks`, -1 for none.
        returned_place: [R], int32: element of `returned` that gets the token too, -1 for none.
        counts: [L, V], int32: how often each token was generated.
        masks: [M, ⌈V/32⌉], int32: bit ``t % 32`` of word ``t // 32`` allows token t.
        returned: [N], int32: memory that the host reads; changed in place.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    presence_penalty: Tensor
    frequency_penalty: Tensor
    seed: Tensor
    position: Tensor
    purpose: Tensor
    counts_row: Tensor
    mask_row: Tensor
    returned_place: Tensor
    counts: Tensor
    masks: Tensor
    returned: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, in the order of the attributes."""
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)

    def check(self, op: str, R: int, V: int) -> None:
        """Refuse tensors of other shapes or dtypes than above."""
        floats = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty")
        integers = ("top_k", "position", "purpose", "counts_row", "mask_row", "returned_place")
        for names, dtype in ((floats, DType.FP32), (integers, DType.INT32)):
            for name in names:
                check_shape(op, name, getattr(self, name), (R,))
                check_dtype(op, name, getattr(self, name), (dtype,))
        check_shape(op, "seed", self.seed, (R, 2))
        check_shape(op, "counts", self.counts, (self.counts.shape[0], V))
        check_shape(op, "masks", self.masks, (self.masks.shape[0], -(-V // MASK_BITS)))
        check_rank(op, "returned", self.returned, "N")
        for name in ("seed", "counts", "masks", "returned"):
            check_dtype(op, name, getattr(self, name), (DType.INT32,))


def sample(
    logits: Tensor, rows: SamplingRows, *, public_tokens: int, out: Tensor | None = None
) -> Tensor:
    """Choose the token that follows each column.

    Only tokens below `public_tokens` count. A token that the row's mask does not allow is left out;
    the penalties are subtracted; the best 20 at most are weighted, cut by min_p and top_p, and drawn
    from with the random number of seed, position and purpose. Arithmetic is float32, in the order of
    `ninfer_runtime.sampling.distribution`. A row with a logit that is not finite, or without an
    allowed token, gives -1.

    Args:
        logits: [R, V], fp32, rows contiguous.
        rows: How each row is sampled.
        public_tokens: Tokens that the tokenizer knows, 1..V.
        out: [R], int32. By default a new tensor.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
        UnsupportedOpError: The device has no kernel for so many tokens.
    """
    check_rank("sample", "logits", logits, "R V")
    check_dtype("sample", "logits", logits, (DType.FP32,))
    R, V = logits.shape
    if not 1 <= public_tokens <= V:
        raise OpArgumentError("sample", "public_tokens", expected=f"1..{V}", found=public_tokens)
    rows.check("sample", R, V)
    if out is None:
        out = logits.device.empty((R,), DType.INT32)
    check_shape("sample", "out", out, (R,))
    check_dtype("sample", "out", out, (DType.INT32,))
    call("sample", logits, *rows.tensors, out, public_tokens=public_tokens)
    return out
