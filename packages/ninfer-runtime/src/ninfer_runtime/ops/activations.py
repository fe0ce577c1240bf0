"""Pointwise functions of the reference implementations, float32 to float32."""

from __future__ import annotations

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), in a new array."""
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, 0
        result: np.ndarray = np.exp(-x)
    result += 1
    np.reciprocal(result, out=result)
    return result


def silu(x: np.ndarray) -> np.ndarray:
    """The product x · sigmoid(x), in a new array."""
    result = sigmoid(x)
    result *= x
    return result


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + exp(x)), without overflow, in a new array."""
    result: np.ndarray = np.logaddexp(x, np.float32(0))
    return result
