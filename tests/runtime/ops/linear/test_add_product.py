"""A product that is added to a residual, and the products of the norm of the sum."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.packed_weights import pack_weight

from ninfer_runtime.device import DType
from ninfer_runtime.errors import OpArgumentError, UnsupportedOpError
from ninfer_runtime.ops.add_rms_norm import add_product_rms_norm
from ninfer_runtime.ops.linear import Product, linear, stacked_linear
from ninfer_runtime.ops.linear.activations import pack

ON_CUDA = True
EPS = 1e-6
COLUMNS = (1, 2, 4, 5, 8, 9, 40, 200)
K = 384


@pytest.fixture
def packed(stored_weight, device):
    """A weight of a format on the device, and its values in float64."""

    def make(name, shape):
        codec, payload = stored_weight(name, shape)
        return (
            pack_weight(codec, payload, device),
            codec.decode(payload).reshape(shape).astype(np.float64),
        )

    return make


def bound(rows, values, product, expected, *, many):
    """Error of a sum: it is rounded to bf16, and so may the product be, where it is computed alone.

    For many rows the weights are rounded as well. The float32 sums of up to 100 have errors of 2^-18
    from each of K terms.
    """
    error = np.full(product.shape, K * 2.0**-18)
    if many:
        error += 2.0**-8 * (np.abs(rows) @ np.abs(values).T)
    error += 2.0**-8 * (np.abs(product) + error)
    return error + 2.0**-8 * (np.abs(expected) + error)


def norm(x, weight):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS) * weight


@pytest.mark.parametrize("D", [128, 2048, 5120])
@pytest.mark.parametrize("name", ["q4_g64_fp16", "q5_g64_fp16", "bf16"])
def test_sum_and_products_of_its_norm(tensor, packed, values_of, assert_rounded_once, rng, D, name):
    matrix, values = packed(name, (D, K))
    following = [packed(each, (64, D)) for each in ("q6_g64_fp16", "bf16")]
    weight = tensor(0.3 * rng.standard_normal(D), DType.BF16)
    for T in COLUMNS:
        x = tensor(3 * rng.standard_normal((T, D)), DType.BF16)
        rows = tensor(rng.standard_normal((T, K)), DType.BF16)
        product = values_of(rows) @ values.T
        expected = values_of(x) + product
        out = add_product_rms_norm(x, Product(rows, matrix), weight, eps=EPS, unit_offset=True)
        allowed = bound(values_of(rows), values, product, expected, many=T >= 192)
        assert (np.abs(values_of(x) - expected) <= allowed).all(), T
        normed = norm(values_of(x), 1 + values_of(weight))
        found = stacked_linear(out, [each for each, _ in following])
        wanted = np.concatenate([normed @ each.T for _, each in following], axis=1)
        error = np.linalg.norm(values_of(found) - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
        # Rounding of the norm and of the result to bf16; of many columns of the weight as well.
        assert (error < 6e-3).all(), (T, error)


@pytest.mark.parametrize("T", [1, 8])
def test_a_sum_of_sums(tensor, packed, values_of, rng, T):
    """A product whose norm is unfinished may itself be added."""
    matrix, values = packed("q5_g64_fp16", (256, 256))
    ones = tensor(np.ones(256), DType.BF16)
    x = tensor(rng.standard_normal((T, 256)), DType.BF16)
    rows = tensor(rng.standard_normal((T, 256)), DType.BF16)
    first = add_product_rms_norm(x, Product(rows, matrix), ones, eps=EPS)
    once = values_of(x)
    add_product_rms_norm(x, Product(first, matrix), ones, eps=EPS)
    expected = once + norm(once, 1.0) @ values.T
    np.testing.assert_allclose(values_of(x), expected, rtol=2**-7, atol=0.03)


@pytest.mark.parametrize("size", [2.0**-12, 2.0**12])
def test_small_and_large_residuals_are_normalised_alike(tensor, packed, values_of, rng, size):
    matrix, values = packed("q8_g32_fp16", (256, 256))
    zeros = tensor(np.zeros((3, 256)), DType.BF16)
    x = tensor(size * rng.standard_normal((3, 256)), DType.BF16)
    out = add_product_rms_norm(x, Product(zeros, matrix), tensor(np.ones(256), DType.BF16), eps=EPS)
    wanted = norm(values_of(x), 1.0) @ values.T
    error = np.linalg.norm(values_of(linear(out, matrix)) - wanted) / np.linalg.norm(wanted)
    # A binary16 below 2^-14 has a fixed step of 2^-24, here of x / 64.
    assert error < 6e-3 + 2.0**-25 * 64 / size


@pytest.mark.gpu
def test_other_kernels_do_not_take_it(gpu, stored_weight, rng):
    codec, payload = stored_weight("q4_g64_fp16", (128, 128))
    matrix = pack_weight(codec, payload, gpu)
    x, rows = (
        gpu.from_host(rng.standard_normal((2, 128)).astype(np.float32), DType.BF16)
        for _ in range(2)
    )
    weight = gpu.from_host(np.ones(128, np.float32), DType.BF16)
    out = add_product_rms_norm(x, Product(rows, matrix), weight, eps=EPS)
    with pytest.raises(UnsupportedOpError, match="a norm to be finished"):
        pack(gpu, out, matrix)


def test_wrong_arguments_are_refused(tensor, packed):
    matrix, _ = packed("bf16", (64, 128))
    x, rows = tensor(np.ones((2, 64))), tensor(np.ones((3, 128)))
    with pytest.raises(OpArgumentError, match="'y'"):
        add_product_rms_norm(x, Product(rows, matrix), tensor(np.ones(64)), eps=EPS)
    with pytest.raises(OpArgumentError, match="'weight'"):
        add_product_rms_norm(
            tensor(np.ones((3, 64))), Product(rows, matrix), tensor(np.ones(4)), eps=EPS
        )
