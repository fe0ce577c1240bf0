"""NumPy meaning of `feed_tokens`."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.tensor import Tensor


def feed_tokens(token_ids: Tensor, sampled: Tensor, counts: Tensor, counts_row: Tensor) -> None:
    """See the contract in the package."""
    ids = token_ids.array
    for b, row in enumerate(counts_row.array):
        fed = ids[b] < 0
        ids[b, fed] = np.maximum(sampled.array[-1 - ids[b, fed]], 0)
        if row >= 0:
            np.add.at(counts.array[row], ids[b], 1)
