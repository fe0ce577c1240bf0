"""Several weights and one input, on the CPU and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.packed_weights import pack_weight

from ninfer_runtime.device import DType
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.linear import stacked_linear

ON_CUDA = True
FORMATS = (("q4_g64_fp16", 64), ("q5_g64_fp16", 208), ("bf16", 40), ("fp8_e4m3fn_row_bf16", 16))


@pytest.fixture
def stack(stored_weight, device):
    """Weights of several formats, and their values in float64 one below the other."""
    weights, values = [], []
    for name, N in FORMATS:
        codec, payload = stored_weight(name, (N, 256))
        weights.append(pack_weight(codec, payload, device))
        values.append(codec.decode(payload).reshape(N, 256).astype(np.float64))
    return weights, np.concatenate(values)


@pytest.mark.parametrize("T", [1, 3, 8, 9, 70, 140])
def test_results_lie_side_by_side(stack, tensor, poisoned, values_of, assert_rounded_once, rng, T):
    weights, values = stack
    x = tensor(rng.standard_normal((T, 256)), DType.BF16)
    out = poisoned((T, len(values)), DType.FP32)
    assert stacked_linear(x, weights, out=out) is out
    assert_rounded_once(out, values_of(x) @ values.T, tolerance=2e-4)


def test_the_result_has_the_dtype_of_the_rows(stack, tensor, rng):
    weights, values = stack
    y = stacked_linear(tensor(rng.standard_normal((2, 256)), DType.BF16), weights)
    assert (y.shape, y.dtype) == ((2, len(values)), DType.BF16)


def test_wrong_arguments_are_refused(stack, tensor):
    weights, _ = stack
    with pytest.raises(OpArgumentError, match="at least one"):
        stacked_linear(tensor(np.ones((1, 256)), DType.BF16), [])
    with pytest.raises(OpArgumentError, match="'weight'"):
        stacked_linear(tensor(np.ones((1, 128)), DType.BF16), weights)
