"""NumPy meaning of `delta_gates`."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.activations import sigmoid, softplus
from ninfer_runtime.ops.rounding import load, store


def delta_gates(
    a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, g: Tensor, beta: Tensor
) -> None:
    """See the contract in the package."""
    store(g, -np.exp(load(a_log)) * softplus(load(a) + load(dt_bias)))
    store(beta, sigmoid(load(b)))
