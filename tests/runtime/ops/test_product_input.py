"""Results that are made for products: a tensor like others, whose packed orders are right."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.ops.paged import SCALE, draw

from ninfer_runtime.device import DType
from ninfer_runtime.ops.add_rms_norm import add_rms_norm
from ninfer_runtime.ops.linear import linear
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS, to_records
from ninfer_runtime.ops.paged_attention import paged_attention
from ninfer_runtime.ops.paged_attention.cases import AttentionCase
from ninfer_runtime.ops.product_input import ProductInput
from ninfer_runtime.ops.rms_norm import rms_norm
from ninfer_runtime.ops.swiglu import swiglu

ON_CUDA = True
EPS = 1e-6
COLUMNS = (1, 5, 8, 9, 128, 131)


def norm(tensor, rng, T, K):
    x = tensor(3 * rng.standard_normal((T, K)), DType.BF16)
    return rms_norm(x, tensor(rng.standard_normal(K), DType.BF16), eps=EPS)


def norm_of_sum(tensor, rng, T, K):
    x, y = (tensor(rng.standard_normal((T, K)), DType.BF16) for _ in range(2))
    return add_rms_norm(x, y, tensor(rng.standard_normal(K), DType.BF16), eps=EPS)


def gated(tensor, rng, T, K):
    both = tensor(6 * rng.standard_normal((T, 2 * K)), DType.BF16)
    return swiglu(both[:, :K], both[:, K:])


producers = pytest.mark.parametrize("produce", [norm, norm_of_sum, gated])


@pytest.fixture
def identity(device):
    """Weights with which a product gives back some columns, for f16 and for bf16 rows."""

    def make(K, begin, N=16):
        ones = np.zeros((N, K), np.int32)
        ones[np.arange(N), begin + np.arange(N)] = 1
        weights = []
        for name in ("q4_g64_fp16", "bf16"):
            record_format = RECORD_FORMATS[name]
            words = ones if name != "bf16" else ones * 0x3F80
            scales = np.full((N, -(-K // 64)), 0x3C00, np.uint16)
            records = to_records(record_format, words, scales if name != "bf16" else None)
            data = records if device.kind == "cpu" else device.upload(records)
            weights.append(PackedWeight(name, (N, K), data, None, device))
        return weights

    return make


@producers
@pytest.mark.parametrize("K", [128, 200, 5120])
def test_products_find_every_element(tensor, device, identity, rng, produce, K):
    """What was packed is what is in the rows, up to the rounding of small elements to f16."""
    if K == 5120 and produce is gated:
        K = 17408
    for T in COLUMNS:
        x = produce(tensor, rng, T, K)
        assert isinstance(x, ProductInput)
        rows = device.to_host(x)
        for begin in {0, 16 * (K // 48), K - 16}:
            for weight in identity(K, begin):
                found = device.to_host(linear(x, weight))
                expected = rows[:, begin : begin + 16]
                largest = 2.0 ** np.ceil(np.log2(np.abs(rows).max()))
                np.testing.assert_allclose(
                    found, expected, rtol=0, atol=2.0**-25 * max(1, largest / 2**14)
                )


@pytest.mark.gpu
@pytest.mark.parametrize("produce", [norm, norm_of_sum])
@pytest.mark.parametrize("T", [1, 8, 100])
def test_a_gpu_packs_while_it_computes(gpu, rng, produce, T):
    def tensor(values, dtype):
        return gpu.from_host(np.asarray(values, np.float32), dtype)

    x = produce(tensor, rng, T, 1280)
    if T > 8 and not gpu.target.has_wgmma:
        assert x.f16 is None
        return
    assert x.f16 is not None
    assert x.bf16 is not None
    assert x.f16.columns == x.bf16.columns == T


def test_rows_of_any_size_are_packed_without_overflow(tensor, device, identity, rng):
    """Elements up to 2^60: a power of two is taken out of each row."""
    both = tensor(
        rng.standard_normal((3, 512)) * np.array([[1.0], [2.0**30], [2.0**15]]), DType.BF16
    )
    x = swiglu(both[:, :256], both[:, 256:])
    found = device.to_host(linear(x, identity(256, 32)[0]))
    expected = device.to_host(x)[:, 32:48]
    largest = np.abs(device.to_host(x)).max(axis=1, keepdims=True)
    assert (np.abs(found - expected) <= largest * 2.0**-38 + 2.0**-25).all()


def test_an_op_that_writes_into_it_makes_it_forget(tensor, device, identity, rng):
    x = norm(tensor, rng, 2, 256)
    weight = identity(256, 0)[0]
    linear(x, weight)
    linear(norm(tensor, rng, 2, 256), identity(256, 0, 256)[0], out=x)
    np.testing.assert_array_equal(device.to_host(linear(x, weight)), device.to_host(x)[:, :16])


def test_views_are_plain_tensors(tensor, rng):
    x = norm(tensor, rng, 4, 128)
    assert not isinstance(x[1:3], ProductInput)
    assert not isinstance(x.reshape(2, 2, 128), ProductInput)


@pytest.mark.parametrize("T", [1, 8, 40])
def test_attention_packs_parts_of_rows(device, identity, rng, T):
    """All with one factor, 64, since no part knows the largest element of the row."""
    case = AttentionCase(6, 1, 1, (70,) * T, (1,) * (T - 1) + (int(T == 1),))
    query, gate, pages, spans = draw(device, rng, case, "int8")
    q, g = (device.from_host(each, DType.BF16) for each in (query, gate))
    x = paged_attention(q, g, pages, spans, scale=SCALE)
    assert isinstance(x, ProductInput)
    if device.kind == "cuda" and (T <= 8 or device.target.has_wgmma):
        assert x.f16 is not None
    rows = device.to_host(x)
    for begin in (0, 752, 1520):
        for weight in identity(1536, begin):
            found = device.to_host(linear(x, weight))
            np.testing.assert_allclose(found, rows[:, begin : begin + 16], rtol=0, atol=2.0**-19)
