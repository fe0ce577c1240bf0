import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from ninfer_quant.quality.agreement import Agreement

vectors = array_shapes(max_dims=1, max_side=40).flatmap(
    lambda shape: st.tuples(
        *[arrays(np.float32, shape, elements=st.floats(-100, 100, width=32))] * 2
    )
)


def dot(first, second):
    return math.fsum(float(x) * float(y) for x, y in zip(first, second, strict=True))


@given(vectors, st.integers(0, 40))
def test_figures_are_those_of_their_definitions(pair, cut):
    values, stored = pair
    found = Agreement()
    for piece in (slice(0, cut), slice(cut, None)):
        if len(values[piece]):
            found.add(values[piece], stored[piece])
    difference = (stored - values).astype(np.float64)
    noise, signal = dot(difference, difference), dot(values, values)
    assert found.elements == len(values)
    assert found.max_error == pytest.approx(max(abs(difference)), rel=1e-6)
    if signal:
        assert found.relative_frobenius == pytest.approx(math.sqrt(noise / signal), rel=1e-6)
    if signal and noise:
        assert found.sqnr_db is not None
        assert found.sqnr_db == pytest.approx(10 * math.log10(signal / noise), abs=1e-5)
        assert found.relative_frobenius == pytest.approx(10 ** (-found.sqnr_db / 20))
    if signal and dot(stored, stored):
        expected = dot(values, stored) / math.sqrt(signal) / math.sqrt(dot(stored, stored))
        assert found.cosine == pytest.approx(expected, abs=1e-12)


def test_nothing_but_zeros():
    zeros, ones = np.zeros(3, np.float32), np.ones(3, np.float32)
    for values, stored, cosine in [(zeros, zeros, 1), (zeros, ones, None), (ones, zeros, None)]:
        found = Agreement()
        found.add(values, stored)
        assert found.cosine == cosine


def test_merged_figures_are_those_of_all_elements():
    generator = np.random.default_rng(8)
    values, stored = generator.normal(size=(2, 600)).astype(np.float32)
    whole, first, second = Agreement(), Agreement(), Agreement()
    whole.add(values, stored)
    first.add(values[:200], stored[:200])
    second.add(values[200:], stored[200:])
    first.merge(second)
    assert first.elements == 600
    assert first.max_error == whole.max_error
    assert first.relative_frobenius == pytest.approx(whole.relative_frobenius, rel=1e-12)
    assert first.cosine == pytest.approx(whole.cosine, rel=1e-12)
