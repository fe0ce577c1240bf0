from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.attention import attention, reference

SIZES = [  # T, S, H, KH, HD
    (1, 1, 1, 1, 1),
    (1, 70, 4, 2, 33),
    (5, 5, 6, 1, 16),
    (3, 130, 4, 4, 8),
    (200, 300, 2, 1, 24),
]


def oracle(query, key, value, scale):
    """Position by position, head by head."""
    T, H, _ = query.shape
    S, KH, _ = key.shape
    rows = np.empty((T, H, value.shape[-1]))
    for t in range(T):
        for h in range(H):
            visible, head = S - T + t + 1, h // (H // KH)
            scores = scale * key[:visible, head] @ query[t, h]
            weights = np.exp(scores - scores.max())
            rows[t, h] = weights @ value[:visible, head] / weights.sum()
    return rows


@pytest.mark.parametrize(("T", "S", "H", "KH", "HD"), SIZES)
@pytest.mark.parametrize("strided", [False, True])
def test_matches_the_formula(
    tensor, poisoned, values_of, assert_rounded_once, rng, dtype, T, S, H, KH, HD, strided
):
    query = tensor(2 * rng.standard_normal((T, H, HD)), dtype, strided=strided)
    key = tensor(rng.standard_normal((S, KH, HD)), dtype)
    value = tensor(rng.standard_normal((S, KH, HD)), dtype)
    out = poisoned((T, H, HD), dtype)
    assert attention(query, key, value, scale=0.3, out=out) is out
    expected = oracle(values_of(query), values_of(key), values_of(value), 0.3)
    assert_rounded_once(out, expected)


@pytest.mark.parametrize("score_elements", [1, 700, 3000])
def test_blocks_of_queries_do_not_show(
    tensor, values_of, assert_rounded_once, rng, monkeypatch, score_elements
):
    query = tensor(rng.standard_normal((37, 4, 8)))
    key, value = (tensor(rng.standard_normal((50, 2, 8))) for _ in range(2))
    monkeypatch.setattr(reference, "SCORE_ELEMENTS", score_elements)
    expected = oracle(values_of(query), values_of(key), values_of(value), 0.5)
    assert_rounded_once(attention(query, key, value, scale=0.5), expected)


def test_later_positions_have_no_influence(tensor, values_of, rng):
    query, key, value = (rng.standard_normal((6, 1, 4)) for _ in range(3))
    before = values_of(attention(tensor(query), tensor(key), tensor(value), scale=1.0))
    key[4:], value[4:] = 1e3, -1e3
    after = values_of(attention(tensor(query), tensor(key), tensor(value), scale=1.0))
    np.testing.assert_array_equal(before[:4], after[:4])
    assert not np.allclose(before[4:], after[4:])


def test_huge_scores_do_not_overflow(tensor, values_of, rng):
    key = rng.standard_normal((9, 1, 4))
    value = rng.standard_normal((9, 1, 4))
    out = values_of(attention(tensor(1e4 * key[-1:]), tensor(key), tensor(value), scale=1.0))
    best = np.argmax(key[:, 0] @ key[-1, 0])
    np.testing.assert_allclose(out[0, 0], value[best, 0], atol=1e-6)


def test_wrong_arguments_are_refused(tensor):
    query, key = tensor(np.ones((2, 4, 8))), tensor(np.ones((3, 2, 8)))
    with pytest.raises(OpArgumentError, match="a multiple of 2 heads, found 3"):
        attention(tensor(np.ones((2, 3, 8))), key, key, scale=1.0)
    with pytest.raises(OpArgumentError, match=r"1\.\.3 rows, the keys' number, found 4"):
        attention(tensor(np.ones((4, 4, 8))), key, key, scale=1.0)
    with pytest.raises(OpArgumentError, match="'key'"):
        attention(query, tensor(np.ones((3, 2, 7))), key, scale=1.0)
    with pytest.raises(OpArgumentError, match="'value'"):
        attention(query, key, tensor(np.ones((2, 2, 8))), scale=1.0)
    with pytest.raises(OpArgumentError, match="'query'"):
        attention(tensor(np.ones((2, 32))), key, key, scale=1.0)
