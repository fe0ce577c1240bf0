"""The gated delta rule over chunks of tokens.

Within a chunk the recurrence is a triangular system. With the rows of a chunk as matrices
K, Q [C, DK] and V [C, DV], the running sums G of g, ``D[i, j] = exp(G[i] − G[j])`` for i ≥ j and
the state S' = Sᵀ [DK, DV] before the chunk::

    A = strictly_lower((beta ⊙ K) Kᵀ ⊙ D)
    M = (I + A)⁻¹
    N = M (beta ⊙ V) − M (beta ⊙ exp(G) ⊙ K) S'
    Y = (exp(G) ⊙ Q) S' + ((Q Kᵀ) ⊙ D) N
    S' ← exp(G[last]) · S' + (exp(G[last] − G) ⊙ K)ᵀ N

Everything that does not touch the state is computed for all chunks and heads at once. The arrays
have the axes [chunk, KH, R, token, ...], where R value heads share a key head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CHUNK = 64
"""Tokens of a full chunk; a power of two."""


def chunked(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    g: np.ndarray,
    beta: np.ndarray,
    state: np.ndarray,
    chunk: int = CHUNK,
) -> np.ndarray:
    """Chunk by chunk; arguments and result as those of `recurrent`.

    Args:
        q: [T, KH, DK], unit rows divided by sqrt(DK).
        k: [T, KH, DK], unit rows.
        v: [T, VH, DV].
        g: [T, VH].
        beta: [T, VH].
        state: [VH, DV, DK], updated in place.
        chunk: Tokens of a chunk; a power of two. A short sequence takes a smaller one.

    Returns:
        [T, VH, DV].
    """
    T, VH, DV = v.shape
    _, KH, DK = k.shape
    chunk = min(chunk, 1 << (T - 1).bit_length())
    terms = _chunk_terms(
        _in_chunks(q, chunk, KH),
        _in_chunks(k, chunk, KH),
        _in_chunks(v, chunk, KH),
        _in_chunks(g[..., None], chunk, KH)[..., 0],
        _in_chunks(beta[..., None], chunk, KH),
    )
    carried = state.reshape(KH, VH // KH, DV, DK)
    rows = _carry_state(terms, carried)
    # [chunk, KH, R, token, DV] -> [T, VH, DV]
    return rows.transpose(0, 3, 1, 2, 4).reshape(-1, VH, DV)[:T]


@dataclass(frozen=True, slots=True)
class _ChunkTerms:
    """What the loop over chunks needs, each [chunk, KH, R, token, ...]."""

    q_decayed: np.ndarray  # exp(G) ⊙ Q, [..., C, DK]
    k_decayed: np.ndarray  # exp(G[last] − G) ⊙ K, [..., C, DK]
    scores: np.ndarray  # (Q Kᵀ) ⊙ D, [..., C, C]
    u: np.ndarray  # M (beta ⊙ V), [..., C, DV]
    w: np.ndarray  # M (beta ⊙ exp(G) ⊙ K), [..., C, DK]
    decay: np.ndarray  # exp(G[last]), [..., 1, 1]


def _in_chunks(rows: np.ndarray, chunk: int, KH: int) -> np.ndarray:
    """Cut [T, H, X] into [chunks, KH, H / KH, chunk, X].

    The last chunk is filled up with zeros: a token with g = beta = 0 leaves the state as it is.
    """
    T, H, width = rows.shape
    chunks = -(-T // chunk)
    if T % chunk:
        rows = np.concatenate((rows, np.zeros((chunks * chunk - T, H, width), rows.dtype)))
    return rows.reshape(chunks, chunk, KH, H // KH, width).transpose(0, 2, 3, 1, 4)


def _chunk_terms(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray
) -> _ChunkTerms:
    # Sums of many decays are large where their differences are small: float64 keeps the latter.
    G = np.cumsum(g, axis=-1, dtype=np.float64)
    difference = (G[..., :, None] - G[..., None, :]).astype(np.float32)
    C = g.shape[-1]
    causal = np.tri(C, dtype=bool)
    D = np.exp(np.where(causal, difference, np.float32(-np.inf)))
    grown = np.exp(G.astype(np.float32))[..., None]
    remaining = np.exp((G[..., -1:] - G).astype(np.float32))[..., None]

    keys = k.swapaxes(-1, -2)
    A = (k @ keys) * D
    A *= beta
    A[..., np.arange(C), np.arange(C)] = 0
    M = inverse_unit_lower(A)
    return _ChunkTerms(
        q_decayed=q * grown,
        k_decayed=k * remaining,
        scores=(q @ keys) * D,
        u=M @ (v * beta),
        w=M @ (k * (beta * grown)),
        decay=grown[..., -1:, :],
    )


def inverse_unit_lower(A: np.ndarray) -> np.ndarray:
    """Invert I + A for strictly lower triangular A [..., C, C], C a power of two.

    The inverses M of neighbouring diagonal blocks are joined, level by level, by the block below
    the diagonal: ``-M₂ A₂₁ M₁``. Unlike a product of powers of A this keeps small results of
    large terms, which repeated keys bring about.
    """
    C = A.shape[-1]
    batch = A.shape[:-2]
    inverse = np.broadcast_to(np.eye(C, dtype=np.float32), A.shape).copy()
    size = 1
    while size < C:
        pairs = C // (2 * size)
        diagonal = np.arange(pairs)
        blocks = inverse.reshape(*batch, pairs, 2, size, pairs, 2, size)
        first = blocks[..., diagonal, 0, :, diagonal, 0, :]
        second = blocks[..., diagonal, 1, :, diagonal, 1, :]
        below = A.reshape(blocks.shape)[..., diagonal, 1, :, diagonal, 0, :]
        blocks[..., diagonal, 1, :, diagonal, 0, :] = -(second @ below @ first)
        size *= 2
    return inverse


def _carry_state(terms: _ChunkTerms, state: np.ndarray) -> np.ndarray:
    """Run over the chunks; `state` [KH, R, DV, DK] is updated in place."""
    rows = np.empty_like(terms.u)
    for index in range(len(rows)):
        transposed = state.swapaxes(-1, -2)
        new = terms.u[index] - terms.w[index] @ transposed
        np.matmul(terms.q_decayed[index], transposed, out=rows[index])
        rows[index] += terms.scores[index] @ new
        state *= terms.decay[index]
        state += new.swapaxes(-1, -2) @ terms.k_decayed[index]
    return rows
