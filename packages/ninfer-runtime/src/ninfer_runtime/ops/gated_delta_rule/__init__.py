"""The gated delta rule: a linear recurrence over time with a matrix state for each head."""

from __future__ import annotations

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape, output
from ninfer_runtime.ops.registry import call, register

register(
    "gated_delta_rule", "cpu", "ninfer_runtime.ops.gated_delta_rule.reference:gated_delta_rule"
)


def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Run the delta rule over T tokens.

    For each value head with its state S [DV, DK]::

        q = query / sqrt(Σ query² + 1e-6),  k likewise
        S ← exp(g) · S
        e = beta · (value − S k)
        S ← S + e kᵀ
        y = (S q) / sqrt(DK)

    Value head h uses query and key head ``h // (VH / KH)``. State and arithmetic are float32; the
    result is rounded once to its dtype. An implementation may process tokens in chunks, in any
    order of summation.

    Args:
        query: [T, KH, DK], fp32 or bf16, possibly strided.
        key: As `query`.
        value: [T, VH, DV], fp32 or bf16, possibly strided; VH is a multiple of KH.
        g: [T, VH], fp32: the logarithm of the decay, ≤ 0.
        beta: [T, VH], fp32.
        state: [VH, DV, DK], fp32, updated in place; zeros at the start of a sequence.
        out: [T, VH, DV], fp32 or bf16; shares no memory with the inputs. By default a new tensor
            of the dtype of `value`.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
    """
    op = "gated_delta_rule"
    check_rank(op, "query", query, "T KH DK")
    check_rank(op, "value", value, "T VH DV")
    T, KH, DK = query.shape
    _, VH, DV = value.shape
    if T < 1 or KH < 1 or VH % KH:
        raise OpArgumentError(
            op, "value", expected=f"T >= 1 rows of a multiple of {KH} heads", found=(T, VH)
        )
    shapes = (
        ("key", key, (T, KH, DK)),
        ("value", value, (T, VH, DV)),
        ("g", g, (T, VH)),
        ("beta", beta, (T, VH)),
        ("state", state, (VH, DV, DK)),
    )
    for argument, tensor, shape in shapes:
        check_shape(op, argument, tensor, shape)
    for argument, tensor in (("query", query), ("key", key), ("value", value)):
        check_dtype(op, argument, tensor)
    for argument, tensor in (("g", g), ("beta", beta), ("state", state)):
        check_dtype(op, argument, tensor, (DType.FP32,))
    out = output(op, out, value)
    call(op, query, key, value, g, beta, state, out)
    return out
