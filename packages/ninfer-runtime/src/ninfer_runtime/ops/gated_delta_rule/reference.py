"""NumPy meaning of `gated_delta_rule`: the recurrence for one token, chunks for more.

`recurrent` is the definition. `chunked` computes the same by matrix products over chunks of tokens
and is what makes a prompt fast.
"""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.gated_delta_rule.chunked import chunked
from ninfer_runtime.ops.rounding import load, store

NORM_EPS = np.float32(1e-6)


def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    out: Tensor,
) -> None:
    """See the contract in the package."""
    inputs = np.concatenate((load(query), load(key)), axis=1)
    store(out, delta_rule(inputs, load(value), load(g), load(beta), state.array))


def delta_rule(
    query_and_key: np.ndarray,
    value: np.ndarray,
    g: np.ndarray,
    beta: np.ndarray,
    state: np.ndarray,
) -> np.ndarray:
    """`gated_delta_rule` of float32 arrays.

    Args:
        query_and_key: [T, 2·KH, DK]: the heads of the queries, then those of the keys.
        value: See the contract, as the following ones.
        g: [T, VH].
        beta: [T, VH].
        state: [VH, DV, DK], updated in place.

    Returns:
        [T, VH, DV].
    """
    T, heads, DK = query_and_key.shape
    units = unit_rows(query_and_key)
    q, k = units[:, : heads // 2], units[:, heads // 2 :]
    q *= np.float32(DK**-0.5)
    rule = recurrent if T == 1 else chunked
    return rule(q, k, value, g, beta, state)


def unit_rows(values: np.ndarray) -> np.ndarray:
    """Divide each row by its length, ``values / sqrt(Σ values² + 1e-6)``."""
    squares: np.ndarray = np.add.reduce(np.square(values), axis=-1, keepdims=True)
    squares += NORM_EPS
    np.sqrt(squares, out=squares)
    unit: np.ndarray = values / squares
    return unit


def recurrent(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    g: np.ndarray,
    beta: np.ndarray,
    state: np.ndarray,
) -> np.ndarray:
    """Token by token.

    Args:
        q: [T, KH, DK], unit rows divided by sqrt(DK).
        k: [T, KH, DK], unit rows.
        v: [T, VH, DV].
        g: [T, VH].
        beta: [T, VH].
        state: [VH, DV, DK], updated in place.

    Returns:
        [T, VH, DV].
    """
    shared_by = v.shape[1] // k.shape[1]
    q, k = np.repeat(q, shared_by, axis=1), np.repeat(k, shared_by, axis=1)
    decay = np.exp(g)
    rows = np.empty(v.shape, np.float32)
    for t in range(v.shape[0]):
        state *= decay[t, :, None, None]
        error = v[t] - np.matmul(state, k[t, :, :, None])[..., 0]
        error *= beta[t, :, None]
        state += np.einsum("hv,hk->hvk", error, k[t])  # faster than a broadcast product
        rows[t] = np.matmul(state, q[t, :, :, None])[..., 0]
    return rows
