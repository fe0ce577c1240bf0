"""The processed distribution against a plain statement of its rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ninfer_runtime.sampling.distribution import Distribution, penalized, processed_distribution
from ninfer_runtime.sampling.params import SamplingParams


def params(**changed) -> SamplingParams:
    neutral = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    return SamplingParams(**(neutral | changed))


def probabilities_of(result: Distribution) -> np.ndarray:
    weights = np.diff(result.cumulative, prepend=np.float32(0))
    return np.asarray(weights / result.cumulative[-1])


def reference(logits, p) -> tuple[list[int], list[float]]:
    """The rules in double precision, one candidate at a time."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    order = order[: p.top_k if 1 <= p.top_k <= 19 else 20]
    weights = [math.exp((logits[t] - logits[order[0]]) / p.temperature) for t in order]
    total = sum(weights)
    kept: list[int] = []
    mass = 0.0
    for token, weight in zip(order, weights, strict=True):
        if kept and (weight < p.min_p * weights[0] or mass >= p.top_p * total):
            break
        kept.append(token)
        mass += weight
    return kept, [weight / mass for weight in weights[: len(kept)]]


# Logits and settings on a coarse grid, where float32 and float64 take the same decisions.
LOGITS = st.lists(st.integers(-8, 8).map(lambda n: n / 2), min_size=1, max_size=60)


@settings(deadline=None)
@given(
    logits=LOGITS,
    temperature=st.sampled_from([0.25, 0.5, 0.75, 1.0, 2.0]),
    top_k=st.integers(0, 20),
    top_p=st.sampled_from([0.0, 0.313, 0.617, 0.873, 0.951]),
    min_p=st.sampled_from([0.0, 0.0531, 0.231, 0.777, 1.0]),
)
@example(logits=[1.0] * 60, temperature=1.0, top_k=0, top_p=0.951, min_p=1.0)
def test_candidates_and_probabilities_follow_the_rules(logits, temperature, top_k, top_p, min_p):
    p = params(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    ids, probabilities = reference(logits, p)
    result = processed_distribution(np.array(logits, np.float32), p)
    assert result.ids.tolist() == ids
    assert probabilities_of(result) == pytest.approx(probabilities, rel=1e-4)


def test_twenty_candidates_are_the_most():
    logits = np.arange(100, dtype=np.float32) / 100
    for top_k in (0, 20):
        result = processed_distribution(logits, params(top_k=top_k))
        assert result.ids.tolist() == list(range(99, 79, -1))
    assert processed_distribution(logits, params(top_k=19)).ids.size == 19


@given(
    seed=st.integers(0, 1000),
    size=st.integers(600, 5000),
    levels=st.sampled_from([2, 20, 1 << 20]),
    top_k=st.sampled_from([0, 1, 7]),
)
def test_candidates_of_many_logits_are_those_of_a_sort(seed, size, levels, top_k):
    logits = (np.random.default_rng(seed).integers(0, levels, size) / levels).astype(np.float32)
    expected = np.argsort(-logits, kind="stable")[: top_k or 20]
    result = processed_distribution(logits, params(top_k=top_k))
    assert result.ids.tolist() == expected.tolist()


def test_equal_logits_go_to_the_lower_ids():
    logits = np.zeros(1000, np.float32)
    logits[500:] = -0.0
    logits[700] = 1
    result = processed_distribution(logits, params(top_k=4))
    assert result.ids.tolist() == [700, 0, 1, 2]


@pytest.mark.parametrize("temperature", [0, 1e-60, 1e-44])
def test_no_temperature_is_the_first_maximum(temperature):
    logits = np.array([1, 5, 5, -3], np.float32)
    result = processed_distribution(logits, params(temperature=temperature))
    assert result.draw(0.0) == 1
    if temperature == 0:
        assert (result.ids.tolist(), probabilities_of(result).tolist()) == ([1], [1.0])


def test_candidates_without_weight_are_not_kept():
    logits = np.array([0, -300, -3e38, 3e38, 3e38], np.float32)
    result = processed_distribution(logits, params())
    assert result.ids.tolist() == [3, 4]
    assert result.draw(1 - 2**-24) == 4


def test_draws_invert_the_cumulative_distribution():
    logits = np.log(np.array([1, 4, 2, 1], np.float32))
    result = processed_distribution(logits, params())
    drawn = [result.draw(step / 16) for step in range(16)]
    assert drawn == [1] * 8 + [2] * 4 + [0] * 2 + [3] * 2


@settings(deadline=None)
@given(logits=LOGITS, step=st.integers(0, 2**24 - 1))
@example(logits=[0.0] * 3, step=2**24 - 1)
def test_every_number_draws_a_candidate(logits, step):
    result = processed_distribution(np.array(logits, np.float32), params(temperature=0.75))
    assert result.draw(step / 2**24) in result.ids


def test_penalties_are_subtracted():
    logits = np.array([1, 2, 3, 4], np.float32)
    counts = np.array([0, 1, 2, 0], np.int32)
    p = params(presence_penalty=0.5, frequency_penalty=0.25)
    assert penalized(logits, p, counts).tolist() == [1, 1.25, 2, 4]
    p = params(presence_penalty=-1, frequency_penalty=-0.5)
    assert penalized(logits, p, counts).tolist() == [1, 3.5, 5, 4]
    assert logits.tolist() == [1, 2, 3, 4]
