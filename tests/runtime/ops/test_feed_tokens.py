from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.device import DType
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.feed_tokens import feed_tokens

ON_CUDA = True

V = 1000


@pytest.fixture
def feed(device):
    """Call the op with host arrays; returns the ids and the counts afterwards."""

    def call(ids, sampled, counts, counts_row):
        tensors = [
            device.from_host(np.array(values, np.int32))
            for values in (ids, sampled, counts, counts_row)
        ]
        feed_tokens(*tensors)
        return device.to_host(tensors[0]), device.to_host(tensors[2])

    return call


@pytest.mark.parametrize(("B", "C"), [(1, 1), (8, 1), (3, 5), (8, 100)])
def test_ids_are_taken_from_the_rows_that_they_name(feed, rng, B, C):
    sampled = rng.integers(0, V, 8)
    ids = rng.integers(0, V, (B, C))
    rows = rng.integers(0, 8, (B, C))
    is_fed = rng.random((B, C)) < 0.5
    counts = rng.integers(0, 5, (9, V))
    counts_row = np.where(np.arange(B) % 3 == 1, -1, rng.permutation(9)[:B])
    found, counted = feed(np.where(is_fed, -1 - rows, ids), sampled, counts, counts_row)
    expected = np.where(is_fed, sampled[rows], ids)
    np.testing.assert_array_equal(found, expected)
    for b in range(B):
        if counts_row[b] >= 0:
            for token in expected[b]:
                counts[counts_row[b], token] += 1
    np.testing.assert_array_equal(counted, counts)


def test_a_row_without_a_token_gives_a_valid_id(feed):
    found, counted = feed([[-1], [-2]], [-1, 7], np.zeros((2, V)), [0, 1])
    assert found.tolist() == [[0], [7]]
    assert np.argwhere(counted).tolist() == [[0, 0], [1, 7]]


def test_nothing_happens_for_no_sequences(feed):
    counts = np.ones((1, V))
    found, counted = feed(np.zeros((0, 1)), [3], counts, np.zeros(0))
    assert found.shape == (0, 1)
    np.testing.assert_array_equal(counted, counts)


def test_other_shapes_and_dtypes_are_refused(device):
    def integers(*shape):
        return device.zeros(shape, DType.INT32)

    ids, sampled, counts, row = integers(2, 1), integers(8), integers(2, V), integers(2)
    with pytest.raises(OpArgumentError, match="token_ids"):
        feed_tokens(integers(2), sampled, counts, row)
    with pytest.raises(OpArgumentError, match="counts_row"):
        feed_tokens(ids, sampled, counts, integers(3))
    with pytest.raises(OpArgumentError, match="sampled"):
        feed_tokens(ids, device.zeros((8,), DType.FP32), counts, row)
