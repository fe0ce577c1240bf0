from __future__ import annotations

import math

import numpy as np
import pytest

from ninfer_runtime.device import DType
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.delta_gates import delta_gates


@pytest.mark.parametrize("strided", [False, True])
def test_matches_the_formulas(tensor, values_of, assert_rounded_once, rng, dtype, strided):
    a = tensor(5 * rng.standard_normal((7, 3)), dtype, strided=strided)
    b = tensor(5 * rng.standard_normal((7, 3)), dtype, strided=strided)
    a_log, dt_bias = tensor(rng.standard_normal(3)), tensor(rng.standard_normal(3))
    g, beta = delta_gates(a, b, a_log, dt_bias)
    assert g.dtype is beta.dtype is DType.FP32
    softplus = np.log1p(np.exp(values_of(a) + values_of(dt_bias)))
    assert_rounded_once(g, -np.exp(values_of(a_log)) * softplus)
    assert_rounded_once(beta, 1 / (1 + np.exp(-values_of(b))))


def test_extreme_inputs_reach_their_limits(tensor, values_of):
    extreme = tensor([[-1e4, 1e4]])
    g, beta = delta_gates(extreme, extreme, tensor(np.zeros(2)), tensor(np.zeros(2)))
    assert values_of(g).tolist() == [[0, -1e4]]
    assert values_of(beta).tolist() == [[0, 1]]


def test_small_decays_keep_their_relative_accuracy(tensor, values_of):
    g, _ = delta_gates(tensor([[-30.0]]), tensor([[0.0]]), tensor(np.zeros(1)), tensor(np.zeros(1)))
    assert values_of(g)[0, 0] == pytest.approx(-math.exp(-30), rel=1e-5)


def test_wrong_arguments_are_refused(tensor):
    a, vector = tensor(np.ones((2, 3))), tensor(np.ones(3))
    with pytest.raises(OpArgumentError, match="'b'"):
        delta_gates(a, tensor(np.ones((3, 3))), vector, vector)
    with pytest.raises(OpArgumentError, match="'a_log'"):
        delta_gates(a, a, tensor(np.ones(2)), vector)
    with pytest.raises(OpArgumentError, match="'dt_bias'"):
        delta_gates(a, a, vector, tensor(np.ones(3), DType.BF16))
    with pytest.raises(OpArgumentError, match="'a'"):
        delta_gates(vector, vector, vector, vector)
