import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_runtime.eval.divergence import Divergence, log_softmax


def softmax(row):
    """Probabilities in the slow and exact way."""
    largest = max(row)
    weights = [math.exp(value - largest) for value in row]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def expected_divergence(reference, own):
    pairs = zip(softmax(reference), softmax(own), strict=True)
    return math.fsum(p * (math.log(p) - math.log(q)) for p, q in pairs)


def compare(reference, own, targets, pieces=1):
    divergence = Divergence()
    for index in np.array_split(np.arange(len(reference)), pieces):
        top = reference[index].argmax(axis=1)
        divergence.add(reference[index], top, log_softmax(own[index]), targets[index])
    return divergence.report()


@pytest.mark.parametrize("pieces", [1, 3, 40])
def test_the_figures_are_those_of_their_definitions(pieces):
    generator = np.random.default_rng(2)
    reference, noise = generator.normal(size=(2, 40, 11)) * 3
    own = reference + noise * 0.4
    targets = generator.integers(0, 11, 40)
    found = compare(reference, own, targets, pieces)
    each = sorted(expected_divergence(*rows) for rows in zip(reference, own, strict=True))
    assert found.positions == 40
    assert found.mean_kl == pytest.approx(math.fsum(each) / 40, rel=1e-12)
    assert found.median_kl == pytest.approx((each[19] + each[20]) / 2, rel=1e-12)
    # 99 % of the way from the first of 40 to the last: between the two largest.
    assert found.p99_kl == pytest.approx(each[38] + 0.61 * (each[39] - each[38]), rel=1e-9)
    assert found.max_kl == pytest.approx(each[39], rel=1e-12)
    same = sum(
        list(p).index(max(p)) == list(q).index(max(q)) for p, q in zip(reference, own, strict=True)
    )
    assert 0 < same < 40
    assert found.top1_agreement == same / 40
    differences = [
        softmax(q)[token] - softmax(p)[token]
        for p, q, token in zip(reference, own, targets, strict=True)
    ]
    rms = math.sqrt(math.fsum(difference**2 for difference in differences) / 40)
    assert found.rms_probability_difference == pytest.approx(rms, rel=1e-12)


def test_a_model_does_not_differ_from_itself():
    logits = np.random.default_rng(3).normal(size=(9, 50)).astype(np.float32) * 8
    found = compare(logits, logits + np.float32(4), np.zeros(9, int))
    assert 0 <= found.max_kl < 1e-12
    assert found.top1_agreement == 1


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=9))
def test_softmax_sums_to_one(row):
    found = np.exp(log_softmax(np.array([row], np.float32)))[0]
    assert found == pytest.approx(softmax(row), abs=1e-12)
