from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.device import DType
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.activations import sigmoid, silu, softplus
from ninfer_runtime.ops.swiglu import swiglu

ON_CUDA = True


def oracle(x, y):
    return x / (1 + np.exp(-x)) * y


@pytest.mark.parametrize("shape", [(1,), (3, 7), (2, 5, 33), (3, 640)])
@pytest.mark.parametrize("strided", [False, True])
def test_matches_the_formula(
    tensor, poisoned, values_of, assert_rounded_once, rng, dtype, shape, strided
):
    x = tensor(4 * rng.standard_normal(shape), dtype, strided=strided)
    y = tensor(4 * rng.standard_normal(shape), dtype, strided=strided)
    out = poisoned(shape, dtype)
    assert swiglu(x, y, out=out) is out
    assert_rounded_once(out, oracle(values_of(x), values_of(y)))


@pytest.mark.parametrize("target", [0, 1])
def test_output_may_be_either_input(tensor, values_of, assert_rounded_once, rng, target):
    inputs = [tensor(rng.standard_normal((3, 7))) for _ in range(2)]
    expected = oracle(*map(values_of, inputs))
    assert_rounded_once(swiglu(*inputs, out=inputs[target]), expected)


def test_wrong_arguments_are_refused(tensor, device, poisoned):
    x = tensor(np.ones((2, 3)))
    with pytest.raises(OpArgumentError, match="expected shape"):
        swiglu(x, tensor(np.ones((3, 3))))
    with pytest.raises(OpArgumentError, match="expected fp32 or bf16, found int32"):
        swiglu(x, device.from_host(np.ones((2, 3), np.int32)))
    with pytest.raises(OpArgumentError, match="'out'"):
        swiglu(x, x, out=poisoned((2, 4), DType.FP32))


def test_activations_reach_their_limits_without_overflow():
    x = np.array([-1e4, -200, 0, 200, 1e4], np.float32)
    np.testing.assert_array_equal(sigmoid(x), np.array([0, 0, 0.5, 1, 1], np.float32))
    np.testing.assert_array_equal(silu(x), np.array([0, 0, 0, 200, 1e4], np.float32))
    np.testing.assert_allclose(softplus(x), np.array([0, 0, np.log(2), 200, 1e4]), rtol=1e-6)


@pytest.mark.parametrize("function", [sigmoid, silu, softplus])
def test_activations_stay_in_float32_and_leave_their_input(function):
    x = np.linspace(-5, 5, 11, dtype=np.float32)
    kept = x.copy()
    assert function(x).dtype == np.float32
    np.testing.assert_array_equal(x, kept)
