"""Domains, presets and overrides of sampling parameters."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from ninfer_format.errors import UsageError
from ninfer_runtime.sampling.params import SamplingOverrides, SamplingParams, preset

RANGES = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (0, 20),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
}


@pytest.mark.parametrize("name", RANGES)
def test_the_ends_of_a_domain_belong_to_it(name):
    for value in RANGES[name]:
        changed: dict[str, Any] = {name: value}
        assert getattr(SamplingOverrides(**changed).apply(preset(False, True)), name) == value


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("value", [-2.5, 21, math.nan, math.inf, True, "1"])
def test_values_outside_are_refused_by_name(name, value):
    low, high = RANGES[name]
    for kind in (SamplingOverrides, SamplingParams):
        values = dataclasses.asdict(preset(False, True)) if kind is SamplingParams else {}
        with pytest.raises(UsageError, match=rf"{name} must be .* in {low}\.\.{high}"):
            kind(**{**values, name: value})


def test_top_k_is_an_integer():
    wrong: dict[str, Any] = {"top_k": 5.0}
    with pytest.raises(UsageError, match="top_k must be an integer"):
        SamplingOverrides(**wrong)


@pytest.mark.parametrize(
    ("is_moe", "thinking", "values"),
    [
        (False, True, (1.0, 0.95, 20, 0, 0.0, 0)),
        (True, True, (1.0, 0.95, 20, 0, 1.5, 0)),
        (False, False, (0.7, 0.80, 20, 0, 1.5, 0)),
        (True, False, (0.7, 0.80, 20, 0, 1.5, 0)),
    ],
)
def test_presets(is_moe, thinking, values):
    assert dataclasses.astuple(preset(is_moe, thinking)) == values


def test_only_what_is_given_is_replaced():
    own = preset(False, False)
    assert SamplingOverrides().apply(own) == own
    assert SamplingOverrides(top_k=3, min_p=0.5).apply(own) == dataclasses.replace(
        own, top_k=3, min_p=0.5
    )


@pytest.mark.parametrize(
    "overrides", [SamplingOverrides(greedy=True), SamplingOverrides(temperature=0)]
)
def test_greedy_drops_the_penalties_of_the_preset(overrides):
    params = overrides.apply(preset(True, False))
    assert (params.temperature, params.has_penalties) == (0, False)


def test_greedy_keeps_the_penalties_of_the_caller():
    overrides = SamplingOverrides(temperature=1.5, frequency_penalty=0.5, greedy=True)
    params = overrides.apply(preset(True, False))
    assert (params.temperature, params.presence_penalty, params.frequency_penalty) == (0, 0, 0.5)
