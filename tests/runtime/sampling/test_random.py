"""Random numbers against a second implementation in 64-bit machine arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_runtime.sampling.random import Purpose, uniform


def mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64; arrays of one element wrap around silently, as the hardware does."""
    x = x + np.array([0x9E3779B97F4A7C15], np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.array([0xBF58476D1CE4E5B9], np.uint64)
    x = (x ^ (x >> np.uint64(27))) * np.array([0x94D049BB133111EB], np.uint64)
    return np.asarray(x ^ (x >> np.uint64(31)))


def reference(seed, position, purpose, sub) -> float:
    def word(value):
        return np.array([value], np.uint64)

    key = mix(word(seed) ^ (word(np.uint32(position)) * word(0xD1B54A32D192ED03)))
    sub_word = word(sub) * word(0x2545F4914F6CDD1D)
    key = mix(key ^ (word(purpose) << np.uint64(21)) ^ sub_word)
    return float((key >> np.uint64(40))[0]) / 2**24


def test_the_mixer_of_the_reference_is_splitmix64():
    # The first outputs of SplitMix64 from state 0, as published with the generator.
    state = np.array([0], np.uint64)
    assert int(mix(state)[0]) == 0xE220A8397B1DCDAF
    state = state + np.array([0x9E3779B97F4A7C15], np.uint64)
    assert int(mix(state)[0]) == 0x6E789E6AA1B965F4


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**32 - 1),
    purpose=st.sampled_from(Purpose),
    sub=st.integers(0, 100),
)
def test_numbers_are_those_of_the_definition(seed, position, purpose, sub):
    assert uniform(seed, position, purpose, sub) == reference(seed, position, int(purpose), sub)


def test_purposes_have_the_numbers_of_the_specification():
    assert [(purpose.name, int(purpose)) for purpose in Purpose] == [
        ("PREFILL", 0),
        ("DECODE", 1),
        ("ACCEPT", 2),
        ("CORRECTION", 3),
        ("BONUS", 4),
        ("DFLASH2_PROPOSAL", 5),
    ]


def test_positions_count_modulo_two_to_the_32():
    assert uniform(7, 5 + 2**32, Purpose.DECODE) == uniform(7, 5, Purpose.DECODE)


@pytest.mark.parametrize("vary", ["seed", "position", "sub"])
def test_numbers_are_spread_evenly(vary):
    fixed = {"seed": 3, "position": 9, "purpose": Purpose.DECODE, "sub": 0}
    numbers = [uniform(**(fixed | {vary: n})) for n in range(4000)]
    assert min(numbers) >= 0
    assert max(numbers) < 1
    counts = np.bincount([int(number * 10) for number in numbers], minlength=10)
    # The numbers are fixed; 60 is three standard deviations of a fair count.
    assert np.abs(counts - 400).max() < 60


def test_purposes_are_independent():
    numbers = [uniform(1, 1, purpose) for purpose in Purpose]
    assert len(set(numbers)) == len(numbers)
