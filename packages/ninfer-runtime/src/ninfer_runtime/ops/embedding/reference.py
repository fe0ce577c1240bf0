"""NumPy meaning of `embedding`."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.rounding import load, store


def embedding(token_ids: Tensor, table: Tensor, out: Tensor) -> None:
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
    rows = Tensor(table.array[ids], table.dtype, table.device)
    store(out, load(rows))
