from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.packed_weights import pack_weight

from ninfer_runtime.device import DType
from ninfer_runtime.ops.linear import linear
from ninfer_runtime.ops.linear.cases import WEIGHT_FORMATS
from ninfer_runtime.ops.linear.packing import rows_in_turns
from ninfer_runtime.ops.linear.reference import values_of


@pytest.mark.parametrize("name", WEIGHT_FORMATS)
def test_a_packed_weight_has_the_values_of_the_object(stored_weight, device, name):
    codec, payload = stored_weight(name, (128, 192))
    weight = pack_weight(codec, payload, device)
    found, expected = values_of(weight), codec.decode(payload).reshape(128, 192)
    if name == "nvfp4":  # a division there, a product with the reciprocal here
        np.testing.assert_allclose(found, expected, rtol=2e-7)
    else:
        np.testing.assert_array_equal(found, expected)
    extra = 0 if weight.row_scale is None else 128 * 4
    assert weight.num_bytes == weight.data.nbytes + extra


def test_stacked_matrices_keep_their_divisors(stored_weight, device):
    codec, payload = stored_weight("nvfp4", (256, 64), divisors=2)
    weight = pack_weight(codec, payload, device)
    assert len(np.unique(weight.row_scale[:128])) == len(np.unique(weight.row_scale[128:])) == 1
    assert weight.row_scale[0] != weight.row_scale[128]
    np.testing.assert_allclose(values_of(weight), codec.decode(payload).reshape(256, 64), rtol=2e-7)


@pytest.mark.parametrize("rows", [16, 48, 256])
def test_each_row_of_two_halves_has_one_turn(rows):
    order = rows_in_turns(rows)
    assert sorted(order) == list(range(rows))
    for tile in order.reshape(-1, 2, 8):
        np.testing.assert_array_equal(tile[0], tile[0, 0] + np.arange(8))
        np.testing.assert_array_equal(tile[1], tile[0] + rows // 2)


@pytest.mark.parametrize("name", WEIGHT_FORMATS)
def test_halves_of_a_matrix_take_turns(stored_weight, device, name):
    codec, payload = stored_weight(name, (256, 192))
    rows = values_of(pack_weight(codec, payload, device))
    found = values_of(pack_weight(codec, payload, device, in_turns=True))
    np.testing.assert_array_equal(found.reshape(16, 2, 8, 192)[:, 0].reshape(128, 192), rows[:128])
    np.testing.assert_array_equal(found.reshape(16, 2, 8, 192)[:, 1].reshape(128, 192), rows[128:])


@pytest.mark.parametrize("name", WEIGHT_FORMATS)
def test_linear_multiplies_packed_weights(
    stored_weight, device, tensor, poisoned, assert_rounded_once, values_of, rng, name
):
    codec, payload = stored_weight(name, (128, 192))
    weight = pack_weight(codec, payload, device)
    x = tensor(rng.standard_normal((3, 192)), DType.BF16)
    out = poisoned((3, 128), DType.FP32)
    linear(x, weight, out=out)
    expected = values_of(x) @ codec.decode(payload).reshape(128, 192).astype(np.float64).T
    assert_rounded_once(out, expected, tolerance=1e-4)
