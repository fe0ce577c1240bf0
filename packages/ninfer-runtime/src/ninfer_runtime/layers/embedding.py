"""Token embedding."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.embedding import embedding
from ninfer_runtime.ops.linear import Weight


class Embedding:
    """Rows of a table by token id.

    Args:
        table: [V, D].
    """

    def __init__(self, table: Weight) -> None:
        self.table = table

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Rows [T, D] of int32 `token_ids` [T], of the device's activation dtype."""
        shape = (token_ids.shape[0], self.table.shape[1])
        device = token_ids.device
        return embedding(token_ids, self.table, out=device.empty(shape, device.activation_dtype))
