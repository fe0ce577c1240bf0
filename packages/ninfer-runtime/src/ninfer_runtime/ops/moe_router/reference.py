"""NumPy meaning of `moe_router`."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.activations import sigmoid
from ninfer_runtime.ops.rounding import load


def moe_router(
    x: Tensor, weight: Tensor, experts: Tensor, weights: Tensor, shared_weights: Tensor
) -> None:
    """See the contract in the package."""
    products = load(x) @ load(weight).T
    scores = products[:, :-1]
    # A stable sort keeps the lower of two equal experts in front.
    chosen = np.argsort(-scores, axis=1, kind="stable")[:, : experts.shape[1]]
    # The largest of all, so that a score that is not a number spoils the row wherever it stands.
    largest = scores.max(axis=1, keepdims=True)
    exponentials = np.exp(np.take_along_axis(scores, chosen, axis=1) - largest)
    experts.array[...] = chosen
    weights.array[...] = exponentials / exponentials.sum(axis=1, keepdims=True)
    shared_weights.array[...] = sigmoid(products[:, -1])
