"""Gather of table rows by token id."""

from __future__ import annotations

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.arguments import check_dtype, check_rank, output
from ninfer_runtime.ops.registry import call, register

register("embedding", "cpu", "ninfer_runtime.ops.embedding.reference:embedding")
register("embedding", "cuda", "ninfer_runtime.ops.embedding.cuda:embedding")


def embedding(token_ids: Tensor, table: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Gather rows: ``y[t] = table[token_ids[t]]``, unscaled, rounded to the dtype of the result.

    Args:
        token_ids: [T], int32, each in [0, V). A caller that cannot be sure checks before: an id
            outside is an error on the CPU and undefined elsewhere.
        table: [V, D], fp32 or bf16.
        out: [T, D], fp32 or bf16. By default a new tensor of the dtype of `table`.

    Raises:
        OpArgumentError: A shape or dtype is not as above, or (on the CPU) an id is outside.
    """
    check_rank("embedding", "token_ids", token_ids, "T")
    check_rank("embedding", "table", table, "V D")
    check_dtype("embedding", "token_ids", token_ids, (DType.INT32,))
    check_dtype("embedding", "table", table)
    out = output("embedding", out, table, (token_ids.shape[0], table.shape[1]))
    call("embedding", token_ids, table, out)
    return out
