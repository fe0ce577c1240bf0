from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.device import DType
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.moe_router import Routing, moe_router
from ninfer_runtime.ops.moe_router.cases import TEST_CASES


def oracle(x: np.ndarray, weight: np.ndarray, A: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The definition: softmax over all experts, the most probable ones, divided by their sum."""
    scores = x @ weight.T
    experts, weights = [], []
    for row in scores[:, :-1]:
        probabilities = np.exp(row - row.max())
        probabilities /= probabilities.sum()
        chosen = sorted(range(len(row)), key=lambda expert: (-probabilities[expert], expert))[:A]
        experts.append(chosen)
        weights.append(probabilities[chosen] / probabilities[chosen].sum())
    return np.array(experts), np.array(weights), 1 / (1 + np.exp(-scores[:, -1]))


@pytest.mark.parametrize("case", TEST_CASES)
@pytest.mark.parametrize("strided", [False, True])
def test_matches_the_definition(tensor, poisoned, values_of, device, rng, dtype, case, strided):
    T, D, E, A = case
    x = tensor(rng.standard_normal((T, D)), dtype, strided=strided)
    weight = tensor(2 * rng.standard_normal((E + 1, D)) / np.sqrt(D), dtype)
    out = Routing(
        device.from_host(np.full((T, A), -1, np.int32)),
        poisoned((T, A), DType.FP32),
        poisoned((T,), DType.FP32),
    )
    assert moe_router(x, weight, experts_per_token=A, out=out) is out
    experts, weights, shared_weights = oracle(values_of(x), values_of(weight), A)
    np.testing.assert_array_equal(device.to_host(out.experts), experts)
    np.testing.assert_allclose(device.to_host(out.weights), weights, rtol=0, atol=1e-5)
    np.testing.assert_allclose(
        device.to_host(out.shared_weights), shared_weights, rtol=0, atol=1e-5
    )


def test_the_lower_of_equal_experts_comes_first(tensor, device):
    scores = [0.5, 2.0, -1.0, 2.0, 2.0, 0.5, 0.0]  # the last one is the shared expert's
    routing = moe_router(tensor([[1.0]]), tensor(np.reshape(scores, (7, 1))), experts_per_token=4)
    np.testing.assert_array_equal(device.to_host(routing.experts), [[1, 3, 4, 0]])
    three, one = np.exp(2.0), np.exp(0.5)
    expected = np.array([three, three, three, one]) / (3 * three + one)
    np.testing.assert_allclose(device.to_host(routing.weights)[0], expected, rtol=1e-6)
    np.testing.assert_array_equal(device.to_host(routing.shared_weights), [0.5])


def test_all_experts_equal_gives_the_first_ones(tensor, device):
    routing = moe_router(tensor(np.ones((2, 3))), tensor(np.ones((9, 3))), experts_per_token=3)
    np.testing.assert_array_equal(device.to_host(routing.experts), [[0, 1, 2]] * 2)
    np.testing.assert_allclose(device.to_host(routing.weights), 1 / 3, rtol=1e-6)


def test_many_equal_experts_keep_their_order(tensor, device, rng):
    scores = rng.integers(0, 3, 257)
    routing = moe_router(tensor([[1.0]]), tensor(scores[:, None]), experts_per_token=200)
    expected = [e for value in (2, 1, 0) for e in np.flatnonzero(scores[:256] == value)]
    np.testing.assert_array_equal(device.to_host(routing.experts)[0], expected[:200])


def test_scores_are_not_rounded_to_the_dtype_of_the_input(tensor, device):
    """In bf16 both experts would score 256."""
    x = tensor([[256.0, 0.5]], DType.BF16)
    weight = tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], DType.BF16)
    routing = moe_router(x, weight, experts_per_token=1)
    assert device.to_host(routing.experts).tolist() == [[1]]


def test_large_scores_do_not_overflow(tensor, device):
    weight = tensor([[300.0], [299.0], [-300.0], [-300.0]])
    routing = moe_router(tensor([[1.0]]), weight, experts_per_token=3)
    weights = device.to_host(routing.weights)[0]
    np.testing.assert_allclose(weights, [1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1)), 0], atol=1e-6)
    np.testing.assert_array_equal(device.to_host(routing.shared_weights), [0])


@pytest.mark.parametrize("expert", range(4))
def test_what_is_not_a_number_is_not_lost(tensor, device, expert):
    """Even where the expert is not chosen."""
    weight = np.array([[3.0], [2.0], [1.0], [0.0], [0.0]])
    weight[expert] = np.nan
    routing = moe_router(tensor([[1.0]]), tensor(weight), experts_per_token=2)
    assert np.isnan(device.to_host(routing.weights)).all()


def test_wrong_arguments_are_refused(tensor, device, poisoned):
    x, weight = tensor(np.ones((2, 3))), tensor(np.ones((5, 3)))
    with pytest.raises(OpArgumentError, match="expected shape"):
        moe_router(x, tensor(np.ones((5, 4))), experts_per_token=2)
    for wrong in (0, 5):
        with pytest.raises(OpArgumentError, match=r"expected 1\.\.4"):
            moe_router(x, weight, experts_per_token=wrong)
    out = Routing(
        device.from_host(np.zeros((2, 2), np.int32)),
        poisoned((2, 2), DType.BF16),
        poisoned((2,), DType.FP32),
    )
    with pytest.raises(OpArgumentError, match="'weights'"):
        moe_router(x, weight, experts_per_token=2, out=out)
