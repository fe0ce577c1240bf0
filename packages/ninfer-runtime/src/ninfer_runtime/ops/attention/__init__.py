"""Causal attention with grouped queries over the keys and values of a sequence."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape, output
from ninfer_runtime.ops.registry import call, register

register("attention", "cpu", "ninfer_runtime.ops.attention.reference:attention")


def attention(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, out: Tensor | None = None
) -> Tensor:
    """Attend from the last T positions of a sequence of S to all up to their own.

    ``y[t, h] = Σ_s softmax_s(scale · query[t, h]·key[s, j]) · value[s, j]`` over s ≤ S - T + t,
    with j = h // (H / KH). Evaluated in float32, rounded once to the dtype of the result.

    Args:
        query: [T, H, HD], fp32 or bf16, possibly strided.
        key: [S, KH, HD], fp32 or bf16, S ≥ T; H is a multiple of KH.
        value: As `key`.
        scale: Factor of the scores, usually 1 / sqrt(HD).
        out: [T, H, HD], fp32 or bf16; shares no memory with the inputs. By default a new tensor
            of the dtype of `query`.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
    """
    op = "attention"
    for argument, tensor, axes in (("query", query, "T H HD"), ("key", key, "S KH HD")):
        check_rank(op, argument, tensor, axes)
        check_dtype(op, argument, tensor)
    T, H, HD = query.shape
    S, KH, _ = key.shape
    check_shape(op, "key", key, (S, KH, HD))
    check_shape(op, "value", value, (S, KH, HD))
    check_dtype(op, "value", value)
    if not 1 <= T <= S:
        raise OpArgumentError(op, "query", expected=f"1..{S} rows, the keys' number", found=T)
    if KH < 1 or H % KH:
        raise OpArgumentError(op, "query", expected=f"a multiple of {KH} heads", found=H)
    out = output(op, out, query)
    call(op, query, key, value, out, scale=scale)
    return out
