from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.device import DType
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.add_rms_norm import add_rms_norm
from ninfer_runtime.ops.rms_norm import rms_norm

ON_CUDA = True
EPS = 1e-6
SHAPES = [(1, 1), (3, 7), (2, 3, 64), (65, 257), (3, 5120), (2, 2048)]


def oracle(x, weight):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS) * weight


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("unit_offset", [False, True])
def test_matches_the_formula(
    tensor, poisoned, values_of, assert_rounded_once, rng, dtype, shape, strided, unit_offset
):
    x = tensor(3 * rng.standard_normal(shape), dtype, strided=strided)
    weight = tensor(rng.standard_normal(shape[-1]), dtype)
    out = poisoned(shape, dtype)
    assert rms_norm(x, weight, eps=EPS, unit_offset=unit_offset, out=out) is out
    scale = values_of(weight) + (1 if unit_offset else 0)
    assert_rounded_once(out, oracle(values_of(x), scale))


def test_eps_decides_where_the_row_is_small(tensor, assert_rounded_once):
    x, weight = tensor(np.full((1, 4), 1e-3)), tensor(np.ones(4))
    # sqrt(1e-6 + 1e-6) instead of 1e-3
    assert_rounded_once(rms_norm(x, weight, eps=EPS), np.full((1, 4), 0.5**0.5))


def test_a_row_of_zeros_stays_zero(tensor, values_of):
    assert not values_of(rms_norm(tensor(np.zeros((2, 8))), tensor(np.ones(8)), eps=EPS)).any()


def test_output_may_be_the_input(tensor, values_of, assert_rounded_once, rng):
    x, weight = tensor(rng.standard_normal((5, 9))), tensor(rng.standard_normal(9))
    expected = oracle(values_of(x), values_of(weight))
    assert_rounded_once(rms_norm(x, weight, eps=EPS, out=x), expected)


def test_output_may_have_another_dtype(tensor, poisoned, values_of, assert_rounded_once, rng):
    x, weight = tensor(rng.standard_normal((5, 9))), tensor(rng.standard_normal(9))
    out = rms_norm(x, weight, eps=EPS, out=poisoned((5, 9), DType.BF16))
    assert_rounded_once(out, oracle(values_of(x), values_of(weight)))


def test_wrong_arguments_are_refused(tensor, device, poisoned):
    x, weight = tensor(np.ones((2, 8))), tensor(np.ones(8))
    ids = device.from_host(np.ones((2, 8), np.int32))
    with pytest.raises(OpArgumentError, match="'weight'"):
        rms_norm(x, tensor(np.ones(7)), eps=EPS)
    with pytest.raises(OpArgumentError, match="'x'"):
        rms_norm(ids, weight, eps=EPS)
    with pytest.raises(OpArgumentError, match="'out'"):
        rms_norm(x, weight, eps=EPS, out=poisoned((2, 9), DType.FP32))
    with pytest.raises(OpArgumentError, match="'out'"):
        rms_norm(x, weight, eps=EPS, out=ids)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (65, 257), (4, 2048), (3, 5120), (2, 4000)])
@pytest.mark.parametrize("unit_offset", [False, True])
def test_added_matches_the_formula(
    tensor, poisoned, values_of, assert_rounded_once, rng, dtype, shape, unit_offset
):
    x = tensor(3 * rng.standard_normal(shape), dtype)
    y = tensor(rng.standard_normal(shape), dtype)
    weight = tensor(rng.standard_normal(shape[-1]), dtype)
    expected = values_of(x) + values_of(y)
    out = poisoned(shape, dtype)
    assert add_rms_norm(x, y, weight, eps=EPS, unit_offset=unit_offset, out=out) is out
    assert_rounded_once(x, expected)
    # The norm is that of the rounded sum.
    scale = values_of(weight) + (1 if unit_offset else 0)
    assert_rounded_once(out, oracle(values_of(x), scale))


def test_added_output_may_be_the_second_input(tensor, values_of, assert_rounded_once, rng):
    x, y = (tensor(rng.standard_normal((5, 9))) for _ in range(2))
    weight = tensor(rng.standard_normal(9))
    assert add_rms_norm(x, y, weight, eps=EPS, out=y) is y
    assert_rounded_once(y, oracle(values_of(x), values_of(weight)))


def test_added_wrong_arguments_are_refused(tensor):
    x, weight = tensor(np.ones((2, 8))), tensor(np.ones(8))
    with pytest.raises(OpArgumentError, match="'y'"):
        add_rms_norm(x, tensor(np.ones((1, 8))), weight, eps=EPS)
    with pytest.raises(OpArgumentError, match="'weight'"):
        add_rms_norm(x, x, tensor(np.ones(2)), eps=EPS)
    with pytest.raises(OpArgumentError, match="'x'"):
        add_rms_norm(tensor(np.ones(8)), tensor(np.ones(8)), weight, eps=EPS)
