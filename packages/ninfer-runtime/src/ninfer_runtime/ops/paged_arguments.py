"""Checks of what the ops on paged caches share: tables, and where each sequence stands."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape


@dataclass(frozen=True, slots=True)
class Spans:
    """Where the new tokens of B sequences stand in a paged cache.

    Position p of sequence b is token ``p % 64`` of page ``tables[table_rows[b], p // 64]``.

    A GPU reads these tensors, and the rows of older tokens, while kernels queued before may still run:
    they come from a copy, or from kernels that ended before one.

    Attributes:
        tables: [L, W], int32: page numbers.
        table_rows: [B], int32: the table row of each sequence.
        before: [B], int32: tokens of the sequence before the new ones.
        columns: [B], int32: its new tokens, 0..C.
    """

    tables: Tensor
    table_rows: Tensor
    before: Tensor
    columns: Tensor

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All of them, in the order of the attributes."""
        return self.tables, self.table_rows, self.before, self.columns

    def check(self, op: str, B: int) -> None:
        """Refuse tensors of other shapes or dtypes than above."""
        check_rank(op, "tables", self.tables, "L W")
        check_dtype(op, "tables", self.tables, (DType.INT32,))
        for argument in ("table_rows", "before", "columns"):
            tensor: Tensor = getattr(self, argument)
            check_shape(op, argument, tensor, (B,))
            check_dtype(op, argument, tensor, (DType.INT32,))
