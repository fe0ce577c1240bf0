"""NumPy meaning of `causal_conv1d`."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.activations import silu
from ninfer_runtime.ops.rounding import load, store


def causal_conv1d(x: Tensor, weight: Tensor, history: Tensor, out: Tensor) -> None:
    """See the contract in the package."""
    taps = load(weight)
    J, T = taps.shape[0], x.shape[0]
    rows = np.concatenate((load(history), load(x)))
    result = taps[0] * rows[:T]
    for tap in range(1, J):
        result += taps[tap] * rows[tap : tap + T]
    store(history, rows[T:])
    store(out, silu(result))
