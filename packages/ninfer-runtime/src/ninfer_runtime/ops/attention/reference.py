"""NumPy meaning of `attention`."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.rounding import load, store

SCORE_ELEMENTS = 1 << 24
"""Scores that are held at once (64 MiB), so that a long prompt needs no T × S matrix. Fewer would
leave blocks of so few query rows at a long context that the products lose their speed."""

LARGEST_BLOCK = 128
"""Query rows at once where memory allows more: a block skips the keys after its last row."""


def attention(query: Tensor, key: Tensor, value: Tensor, out: Tensor, *, scale: float) -> None:
    """See the contract in the package."""
    T, H, HD = query.shape
    S, KH, _ = key.shape
    queries = load(query).reshape(T, KH, H // KH, HD) * np.float32(scale)
    keys = load(key).transpose(1, 2, 0)  # [KH, HD, S]
    values = load(value).transpose(1, 0, 2)  # [KH, S, HD]
    block = min(LARGEST_BLOCK, max(1, SCORE_ELEMENTS // (H * S)))
    for begin in range(0, T, block):
        end = min(begin + block, T)
        visible = S - T + end
        rows = _attend(queries[begin:end], keys[..., :visible], values[:, :visible])
        store(out[begin:end], rows.reshape(end - begin, H, HD))


def _attend(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Rows [T, KH, G, HD] of queries that are the last T of the visible positions.

    G is the number of query heads that share a key head.
    """
    T, KH, G, HD = queries.shape
    visible = keys.shape[-1]
    scores = queries.transpose(1, 0, 2, 3).reshape(KH, T * G, HD) @ keys
    if T > 1:
        own = scores.reshape(KH, T, G, visible)[..., visible - T :]
        later = np.triu(np.ones((T, T), bool), 1)[:, None]
        np.copyto(own, np.float32(-np.inf), where=later)
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores, out=scores)
    total = weights.sum(axis=-1, keepdims=True)
    rows: np.ndarray = weights @ values
    rows /= total
    return rows.reshape(KH, T, G, HD).transpose(1, 0, 2, 3)
