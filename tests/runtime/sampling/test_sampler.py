"""The sampler: reproducible, public tokens only, and as frequent as the probabilities say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.runtime.sampling.row_sampler import RowSampler

from ninfer_format.errors import UsageError
from ninfer_runtime.sampling.params import Sampling, SamplingOverrides, preset
from ninfer_runtime.sampling.random import Purpose, uniform

SEED = 20_240_601


def sampler(seed=SEED, vocab_size=8, **overrides) -> RowSampler:
    params = SamplingOverrides(**overrides).apply(preset(is_moe=False, thinking=True))
    return RowSampler(Sampling(params, seed), vocab_size, public_tokens=8)


@pytest.fixture
def logits():
    return np.log(np.array([8, 4, 2, 1, 1, 0.5, 0.25, 0.25], np.float32))


def test_frequencies_are_the_probabilities(logits):
    draw = sampler(top_p=1.0)
    n = 20_000
    counts = np.bincount([draw.sample(logits, p, Purpose.DECODE) for p in range(n)], minlength=8)
    probabilities = np.array([8, 4, 2, 1, 1, 0.5, 0.25, 0.25]) / 17
    deviation = np.sqrt(n * probabilities * (1 - probabilities))
    # The seed is fixed, so these counts never change.
    assert np.all(np.abs(counts - n * probabilities) < 3 * deviation)


def test_draws_depend_on_nothing_but_the_number(logits):
    draw = sampler(top_p=1.0)
    edges = np.cumsum([8, 4, 2, 1, 1, 0.5, 0.25, 0.25]) / 17
    for position in range(500):
        u = uniform(SEED, position, Purpose.PREFILL)
        expected = int(np.searchsorted(edges, u, side="right"))
        assert draw.sample(logits, position, Purpose.PREFILL) == expected


def test_seed_position_and_purpose_change_the_draw(logits):
    def draws(seed=SEED, purpose=Purpose.DECODE, first=0):
        draw = sampler(seed)
        return [draw.sample(logits, first + p, purpose) for p in range(50)]

    assert draws() == draws()
    assert draws()[10:] == draws(first=10)[:40]
    assert draws() != draws(seed=SEED + 1)
    assert draws() != draws(purpose=Purpose.PREFILL)


def test_padding_is_never_chosen(logits):
    padded = np.concatenate([logits, np.full(8, 50, np.float32)])
    padded[-1] = math.nan
    draw = sampler(top_p=1.0, vocab_size=16)
    assert {draw.sample(padded, p) for p in range(300)} <= set(range(8))
    assert sampler(greedy=True, vocab_size=16).sample(padded, 0) == 0


def test_generated_tokens_are_penalised(logits):
    draw = sampler(temperature=0, presence_penalty=1.0)
    assert draw.sample(logits, 0) == 0
    draw.record(0)
    # ln 8 - 1 is below ln 4.
    assert draw.sample(logits, 1) == 1
    draw.record(1)
    assert draw.sample(logits, 2) == 0
    draw.record(0)
    assert draw.sample(logits, 3) == 0


def test_frequency_counts_every_time(logits):
    draw = sampler(temperature=0, frequency_penalty=0.5)
    for _ in range(3):
        draw.record(0)
    # ln 8 - 1.5 is below ln 2 but above ln 1.
    draw.record(1)
    draw.record(1)
    assert draw.sample(logits, 0) == 2


def test_the_greedy_draw_is_the_argmax(logits):
    draw = sampler(greedy=True)
    draw.record(0)
    assert [draw.sample(np.roll(logits, shift), shift) for shift in range(8)] == list(range(8))


def test_one_candidate_is_taken(logits):
    for overrides in ({"top_p": 0.0}, {"top_k": 1}, {"min_p": 1.0}):
        draw = sampler(**overrides)
        assert {draw.sample(logits, p) for p in range(50)} == {0}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_token_is_chosen_where_a_logit_is_not_finite(logits, value):
    logits[3] = value
    assert sampler(greedy=True).sample(logits, 0) == -1


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_has_64_bits(seed):
    with pytest.raises(UsageError, match="seed"):
        sampler(seed)
    assert sampler(2**64 - 1).sampling.seed == 2**64 - 1
