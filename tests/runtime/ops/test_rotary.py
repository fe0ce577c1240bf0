from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.device import DType
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.rotary import rotary
from ninfer_runtime.ops.rotary_table import rotary_table

THETA = 1e7
AXES = (0, 1, 2, 0, 1, 2, 0, 0)


def table(device, positions, axes=AXES):
    return rotary_table(
        device.from_host(np.asarray(positions, np.int32)), theta=THETA, axes=tuple(axes)
    )


@pytest.mark.parametrize(("T", "H", "HD"), [(1, 1, 16), (3, 2, 17), (65, 3, 64)])
@pytest.mark.parametrize("strided", [False, True])
def test_pairs_are_rotated_and_the_rest_passes(
    device, tensor, poisoned, values_of, assert_rounded_once, rng, dtype, T, H, HD, strided
):
    x = tensor(rng.standard_normal((T, H, HD)), dtype, strided=strided)
    cos, sin = table(device, rng.integers(0, 4096, (3, T)))
    out = poisoned((T, H, HD), dtype)
    assert rotary(x, cos, sin, out=out) is out
    values, cosines, sines = values_of(x), values_of(cos), values_of(sin)
    expected = values.copy()
    for pair in range(8):
        c, s = cosines[:, None, pair], sines[:, None, pair]
        a, b = values[..., pair], values[..., pair + 8]
        expected[..., pair] = a * c - b * s
        expected[..., pair + 8] = b * c + a * s
    assert_rounded_once(out, expected)


def test_output_may_be_the_input(device, tensor, values_of, rng):
    x = tensor(rng.standard_normal((4, 2, 20)))
    cos, sin = table(device, rng.integers(0, 100, (3, 4)))
    expected = values_of(rotary(x, cos, sin))
    np.testing.assert_array_equal(values_of(rotary(x, cos, sin, out=x)), expected)


def test_product_of_rotated_rows_depends_on_their_distance(device, tensor, values_of, rng):
    x = np.repeat(rng.standard_normal((1, 1, 16)), 4, axis=0)
    y = np.repeat(rng.standard_normal((1, 1, 16)), 4, axis=0)
    steps = np.array([0, 9, 33, 1000])
    at = [table(device, np.tile(steps + shift, (3, 1))) for shift in (0, 7)]
    products = np.sum(
        values_of(rotary(tensor(x), *at[0])) * values_of(rotary(tensor(y), *at[1])), axis=-1
    )
    np.testing.assert_allclose(products, products[0].repeat(4)[:, None], atol=1e-5)


def test_wrong_arguments_are_refused(device, tensor):
    cos, sin = table(device, np.zeros((3, 2)))
    with pytest.raises(OpArgumentError, match="at most 7 pairs, found 8"):
        rotary(tensor(np.ones((2, 1, 15))), cos, sin)
    with pytest.raises(OpArgumentError, match="'cos'"):
        rotary(tensor(np.ones((3, 1, 16))), cos, sin)
    with pytest.raises(OpArgumentError, match="'sin'"):
        rotary(tensor(np.ones((2, 1, 16))), cos, sin[:, :7])
    with pytest.raises(OpArgumentError, match="'cos'"):
        rotary(tensor(np.ones((2, 1, 16))), tensor(np.ones((2, 8)), DType.BF16), sin)
    with pytest.raises(OpArgumentError, match="'x'"):
        rotary(tensor(np.ones((2, 16))), cos, sin)
