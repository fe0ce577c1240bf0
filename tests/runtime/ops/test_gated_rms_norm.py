from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.device import DType
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.gated_rms_norm import gated_rms_norm

EPS = 1e-6


def oracle(x, weight, gate):
    normalised = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS) * weight
    return normalised * gate / (1 + np.exp(-gate))


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 3, 64), (65, 127), (5, 48, 128)])
@pytest.mark.parametrize("strided", [False, True])
def test_matches_the_formula(
    tensor, poisoned, values_of, assert_rounded_once, rng, dtype, shape, strided
):
    x = tensor(3 * rng.standard_normal(shape), dtype, strided=strided)
    gate = tensor(4 * rng.standard_normal(shape), dtype, strided=strided)
    weight = tensor(rng.standard_normal(shape[-1]), dtype)
    out = poisoned(shape, dtype)
    assert gated_rms_norm(x, gate, weight, eps=EPS, out=out) is out
    assert_rounded_once(out, oracle(*map(values_of, (x, weight, gate))))


def test_heads_may_be_cut_out_of_wider_rows(tensor, values_of, assert_rounded_once, rng):
    x = tensor(rng.standard_normal((5, 6, 128)), DType.BF16)
    projection = tensor(rng.standard_normal((5, 3 * 768)), DType.BF16)
    gate = projection[:, 768 : 2 * 768].reshape(5, 6, 128)
    weight = tensor(rng.standard_normal(128), DType.BF16)
    expected = oracle(*map(values_of, (x, weight, gate)))
    assert_rounded_once(gated_rms_norm(x, gate, weight, eps=EPS), expected)


def test_output_may_be_either_input(tensor, values_of, assert_rounded_once, rng):
    for target in range(2):
        first, second = (tensor(rng.standard_normal((5, 9))) for _ in range(2))
        weight = tensor(rng.standard_normal(9))
        expected = oracle(*map(values_of, (first, weight, second)))
        out = gated_rms_norm(first, second, weight, eps=EPS, out=(first, second)[target])
        assert_rounded_once(out, expected)


def test_wrong_arguments_are_refused(tensor):
    x, weight = tensor(np.ones((2, 8))), tensor(np.ones(8))
    with pytest.raises(OpArgumentError, match="'gate'"):
        gated_rms_norm(x, tensor(np.ones((1, 8))), weight, eps=EPS)
    with pytest.raises(OpArgumentError, match="'weight'"):
        gated_rms_norm(x, x, tensor(np.ones(2)), eps=EPS)
