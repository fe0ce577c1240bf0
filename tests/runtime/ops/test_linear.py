from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.device import DType, Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.linear import linear

SIZES = [(1, 1, 1), (1, 257, 33), (7, 96, 130), (65, 33, 257)]


@pytest.mark.parametrize(("T", "K", "N"), SIZES)
@pytest.mark.parametrize("strided", [False, True])
def test_matches_the_formula(
    tensor, poisoned, values_of, assert_rounded_once, rng, dtype, T, K, N, strided
):
    x = tensor(rng.standard_normal((T, K)), dtype, strided=strided)
    weight = tensor(rng.standard_normal((N, K)) / K**0.5, dtype)
    out = poisoned((T, N), dtype)
    assert linear(x, weight, out=out) is out
    assert_rounded_once(out, np.einsum("tk,nk->tn", values_of(x), values_of(weight)))


def test_weight_may_lie_in_any_order(tensor, values_of, assert_rounded_once, rng):
    x, weight = tensor(rng.standard_normal((3, 40))), tensor(rng.standard_normal((11, 40)))
    columns = Tensor(np.asfortranarray(weight.array), DType.FP32, weight.device)
    expected = np.einsum("tk,nk->tn", values_of(x), values_of(weight))
    assert_rounded_once(linear(x, columns), expected)


def test_weight_of_another_dtype(tensor, values_of, assert_rounded_once, rng):
    x = tensor(rng.standard_normal((3, 40)))
    weight = tensor(rng.standard_normal((11, 40)), DType.BF16)
    out = linear(x, weight)
    assert out.dtype is DType.FP32
    assert_rounded_once(out, np.einsum("tk,nk->tn", values_of(x), values_of(weight)))


def test_wrong_arguments_are_refused(tensor, device, poisoned):
    x, weight = tensor(np.ones((2, 8))), tensor(np.ones((3, 8)))
    with pytest.raises(OpArgumentError, match=r"'weight': expected shape \[3, 8\], found \[3, 7\]"):
        linear(x, tensor(np.ones((3, 7))))
    with pytest.raises(OpArgumentError, match=r"'x': expected axes \[T, K\]"):
        linear(tensor(np.ones(8)), weight)
    with pytest.raises(OpArgumentError, match="'weight'"):
        linear(x, device.from_host(np.ones((3, 8), np.int32)))
    with pytest.raises(OpArgumentError, match="'out'"):
        linear(x, weight, out=poisoned((3, 2), DType.FP32))
