"""The tokens of a step that only the device knows, and the counts of those that were generated."""

from __future__ import annotations

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape
from ninfer_runtime.ops.registry import call, register

OP = "feed_tokens"
register(OP, "cpu", "ninfer_runtime.ops.feed_tokens.reference:feed_tokens")
register(OP, "cuda", "ninfer_runtime.ops.feed_tokens.cuda:feed_tokens")


def feed_tokens(token_ids: Tensor, sampled: Tensor, counts: Tensor, counts_row: Tensor) -> None:
    """Put sampled tokens where they are executed next, and count what is executed.

    An id of -1 - r stands for ``sampled[r]`` and is replaced by it; a row without a token (-1) gives 0
    instead, so that everything behind finds a valid id. Then, where ``counts_row[b]`` is not negative,
    each id of sequence b raises its element in that row of `counts` by one.

    Args:
        token_ids: [B, C], int32: ids in 0..V-1, or -R..-1; changed in place.
        sampled: [R], int32.
        counts: [L, V], int32; changed in place.
        counts_row: [B], int32: -1, or a row of `counts` that no other sequence of the call has.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
    """
    check_rank(OP, "token_ids", token_ids, "B C")
    check_rank(OP, "sampled", sampled, "R")
    check_rank(OP, "counts", counts, "L V")
    check_shape(OP, "counts_row", counts_row, token_ids.shape[:1])
    tensors = {
        "token_ids": token_ids,
        "sampled": sampled,
        "counts": counts,
        "counts_row": counts_row,
    }
    for name, tensor in tensors.items():
        check_dtype(OP, name, tensor, (DType.INT32,))
    call(OP, *tensors.values())
