"""Gather of table rows by token id."""

from __future__ import annotations

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.registry import call, register

register("embedding", "cpu", "ninfer_runtime.ops.embedding.reference:embedding")
register("embedding", "cuda", "ninfer_runtime.ops.embedding.cuda:embedding")


def embedding(
    token_ids: Tensor, table: Tensor | PackedWeight, *, out: Tensor | None = None
) -> Tensor:
    """Gather rows: ``y[t] = table[token_ids[t]]``, unscaled, rounded to the dtype of the result.

    The values of a packed table are those of its words, computed in float32.

    Args:
        token_ids: [T], int32, each in [0, V). A caller that cannot be sure checks before: an id
            outside is an error on the CPU and undefined elsewhere.
        table: [V, D], fp32, bf16 or packed.
        out: [T, D], fp32 or bf16. By default a new tensor of the dtype of `table`, for a packed one
            of the device's activations.

    Raises:
        OpArgumentError: A shape or dtype is not as above, or (on the CPU) an id is outside.
        UnsupportedOpError: The device has no kernel for this table.
    """
    op = "embedding"
    check_rank(op, "token_ids", token_ids, "T")
    check_dtype(op, "token_ids", token_ids, (DType.INT32,))
    dtype = table.device.activation_dtype
    if isinstance(table, Tensor):
        check_rank(op, "table", table, "V D")
        check_dtype(op, "table", table)
        dtype = table.dtype
    shape = (token_ids.shape[0], table.shape[1])
    if out is None:
        out = table.device.empty(shape, dtype)
    check_shape(op, "out", out, shape)
    check_dtype(op, "out", out)
    call(op, token_ids, table, out)
    return out
