"""Token embedding."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.embedding import embedding


class Embedding:
    """Rows of a table by token id.

    Args:
        table: [V, D].
    """

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Rows [T, D] of int32 `token_ids` [T]."""
        return embedding(token_ids, self.table)
