from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_runtime.device import get_device
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.causal_conv1d import causal_conv1d


def oracle(x, weight, history):
    J = len(weight)
    rows = np.concatenate((history, x))
    sums = np.array([(weight * rows[t : t + J]).sum(axis=0) for t in range(len(x))])
    return sums / (1 + np.exp(-sums))


@pytest.mark.parametrize(
    ("T", "C", "J"), [(1, 1, 2), (3, 5, 1), (1, 33, 4), (2, 7, 4), (65, 17, 3)]
)
@pytest.mark.parametrize("strided", [False, True])
def test_matches_the_formula(
    tensor, poisoned, values_of, assert_rounded_once, rng, dtype, T, C, J, strided
):
    x = tensor(rng.standard_normal((T, C)), dtype, strided=strided)
    weight = tensor(rng.standard_normal((J, C)), dtype)
    history = tensor(rng.standard_normal((J - 1, C)), dtype)
    expected = oracle(values_of(x), values_of(weight), values_of(history))
    kept = np.concatenate((values_of(history), values_of(x)))[T:]
    out = poisoned((T, C), dtype)
    assert causal_conv1d(x, weight, history, out=out) is out
    assert_rounded_once(out, expected)
    np.testing.assert_array_equal(values_of(history), kept)


@given(cuts=st.lists(st.integers(1, 9), max_size=4))
def test_any_split_gives_the_same_rows(cuts):
    device = get_device("cpu")
    rng = np.random.default_rng(0)
    x = device.from_host(rng.standard_normal((20, 6)).astype(np.float32))
    weight = device.from_host(rng.standard_normal((4, 6)).astype(np.float32))
    whole_history = device.from_host(np.zeros((3, 6), np.float32))
    history = device.from_host(np.zeros((3, 6), np.float32))
    whole = causal_conv1d(x, weight, whole_history).array
    ends = [end for end in np.cumsum(cuts).tolist() if end < 20]
    parts = [
        causal_conv1d(x[begin:end], weight, history).array
        for begin, end in zip([0, *ends], [*ends, 20], strict=True)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(history.array, whole_history.array)


def test_wrong_arguments_are_refused(tensor):
    x, weight, history = (tensor(np.ones((rows, 5))) for rows in (2, 4, 3))
    with pytest.raises(OpArgumentError, match="'history'"):
        causal_conv1d(x, weight, x)
    with pytest.raises(OpArgumentError, match="'weight'"):
        causal_conv1d(x, tensor(np.ones((4, 6))), history)
    with pytest.raises(OpArgumentError, match="T >= 1 rows"):
        causal_conv1d(x[:0], weight, history)
    with pytest.raises(OpArgumentError, match="J >= 1 taps"):
        causal_conv1d(x, weight[:0], history[:0])
    with pytest.raises(OpArgumentError, match="'x'"):
        causal_conv1d(tensor(np.ones(5)), weight, history)
