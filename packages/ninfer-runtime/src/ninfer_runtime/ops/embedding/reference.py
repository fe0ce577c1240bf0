"""NumPy meaning of `embedding`."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.weight_records import ROWS, decode_records
from ninfer_runtime.ops.rounding import load, store


def embedding(token_ids: Tensor, table: Tensor | PackedWeight, out: Tensor) -> None:
    """See the contract in the package."""
    ids: np.ndarray = token_ids.array
    outside = (ids < 0) | (ids >= table.shape[0])
    if outside.any():
        position = int(np.argmax(outside))
        raise OpArgumentError(
            "embedding",
            "token_ids",
            expected=f"ids in 0..{table.shape[0] - 1}",
            found=f"{ids[position]} at position {position}",
        )
    if isinstance(table, PackedWeight):
        store(out, _packed_rows(ids, table))
    else:
        store(out, load(Tensor(table.array[ids], table.dtype, table.device)))


def _packed_rows(ids: np.ndarray, table: PackedWeight) -> np.ndarray:
    """The values of some rows; only the row tiles that hold them are decoded."""
    tiles, places = np.unique(ids // ROWS, return_inverse=True)
    rows = (tiles[:, None] * ROWS + np.arange(ROWS)).ravel()
    factors = None
    if table.row_scale is not None:
        factors = table.row_scale[np.minimum(rows, table.shape[0] - 1)]
    shape = (len(rows), table.shape[1])
    values = decode_records(table.record_format, table.data[tiles], factors, shape)
    found: np.ndarray = values[places * ROWS + ids % ROWS]
    return found
