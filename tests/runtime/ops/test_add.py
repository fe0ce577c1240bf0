from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.device import DType
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.add import add


@pytest.mark.parametrize("strided", [False, True])
def test_elements_are_added_and_rounded_once(
    tensor, poisoned, values_of, assert_rounded_once, rng, dtype, strided
):
    x = tensor(rng.standard_normal((2, 5, 33)), dtype, strided=strided)
    y = tensor(rng.standard_normal((2, 5, 33)), dtype, strided=strided)
    out = poisoned((2, 5, 33), dtype)
    assert add(x, y, out=out) is out
    assert_rounded_once(out, values_of(x) + values_of(y))


@pytest.mark.parametrize("target", [0, 1])
def test_output_may_be_either_input(tensor, values_of, assert_rounded_once, rng, target):
    inputs = [tensor(rng.standard_normal((3, 7))) for _ in range(2)]
    expected = values_of(inputs[0]) + values_of(inputs[1])
    assert_rounded_once(add(*inputs, out=inputs[target]), expected)


def test_wrong_arguments_are_refused(tensor, device, poisoned):
    x = tensor(np.ones((2, 3)))
    with pytest.raises(OpArgumentError, match="expected shape"):
        add(x, tensor(np.ones((3, 3))))
    with pytest.raises(OpArgumentError, match="expected fp32 or bf16, found int32"):
        add(x, device.from_host(np.ones((2, 3), np.int32)))
    with pytest.raises(OpArgumentError, match="'out'"):
        add(x, x, out=poisoned((2, 4), DType.FP32))
