"""The kernels against float64, on random words, with poisoned outputs."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.packed_weights import pack_weight, stored_row_factors

from ninfer_runtime.device import DType, Tensor
from ninfer_runtime.device.dtypes import float32_to_bf16
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear import linear
from ninfer_runtime.ops.linear.cases import TEST_COLUMNS, TEST_SHAPES, WEIGHT_FORMATS
from ninfer_runtime.ops.linear.packing import pack_on_host

pytestmark = pytest.mark.gpu

FP32_TOLERANCE = 3e-5
BF16_TOLERANCE = 4e-3
"""Relative errors (2-norm) of results in float32, and rounded to bf16."""


def storable(name, shape):
    N, K = shape
    return name != "nvfp4" or (N % 128 == 0 and K % 64 == 0)


CASES = [(name, shape) for name in WEIGHT_FORMATS for shape in TEST_SHAPES if storable(name, shape)]


def random_x(rng, T, K, scale=1.0):
    return float32_to_bf16((rng.standard_normal((T, K)) * scale).astype(np.float32))


def poisoned(gpu, T, N, dtype):
    return gpu.from_host(
        np.full((T, N), np.nan, np.float32)
        if dtype is DType.FP32
        else np.full((T, N), 0x7FC0, np.uint16)
    )


def relative_error(found, expected):
    return float(np.linalg.norm(found - expected) / (np.linalg.norm(expected) + 1e-30))


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_the_gpu_makes_the_same_records_as_the_host(gpu, stored_weight, name, shape):
    codec, payload = stored_weight(name, shape)
    weight = pack_weight(codec, payload, gpu)
    np.testing.assert_array_equal(gpu.download(weight.data), pack_on_host(codec, payload))
    row_scale = stored_row_factors(codec, payload)
    if row_scale is not None:
        np.testing.assert_array_equal(gpu.download(weight.row_scale), row_scale)


@pytest.mark.parametrize("name", WEIGHT_FORMATS)
@pytest.mark.parametrize("shape", [(256, 64), (2304, 1152)])
def test_the_gpu_lets_the_same_halves_take_turns(gpu, stored_weight, name, shape):
    codec, payload = stored_weight(name, shape)
    weight = pack_weight(codec, payload, gpu, in_turns=True)
    expected = pack_on_host(codec, payload, in_turns=True)
    np.testing.assert_array_equal(gpu.download(weight.data), expected)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_products_at_every_number_of_columns(gpu, stored_weight, rng, name, shape):
    N, K = shape
    codec, payload = stored_weight(name, shape)
    weight = pack_weight(codec, payload, gpu)
    values = codec.decode(payload).reshape(shape).astype(np.float64)
    x = gpu.from_host(random_x(rng, max(TEST_COLUMNS), K))
    expected = gpu.to_host(x).astype(np.float64) @ values.T
    for dtype, tolerance in ((DType.FP32, FP32_TOLERANCE), (DType.BF16, BF16_TOLERANCE)):
        for T in TEST_COLUMNS:
            out = poisoned(gpu, T, N, dtype)
            linear(x[:T], weight, out=out)
            error = relative_error(gpu.to_host(out), expected[:T])
            assert error < tolerance, f"T = {T}, {dtype}: {error}"


@pytest.mark.parametrize("name", ["q4_g64_fp16", "fp8_e4m3fn_row_bf16", "bf16"])
@pytest.mark.parametrize("T", [1, 5, 40])
def test_columns_of_very_different_size(gpu, stored_weight, rng, name, T):
    """A power of two is taken out of each column, so that nothing overflows."""
    codec, payload = stored_weight(name, (128, 512))
    weight = pack_weight(codec, payload, gpu)
    values = codec.decode(payload).reshape(128, 512).astype(np.float64)
    sizes = 2.0 ** rng.integers(-10, 80, (T, 1))
    x = gpu.from_host(random_x(rng, T, 512, sizes))
    expected = gpu.to_host(x).astype(np.float64) @ values.T
    out = poisoned(gpu, T, 128, DType.FP32)
    linear(x, weight, out=out)
    for found, wanted in zip(gpu.to_host(out), expected, strict=True):
        assert relative_error(found, wanted) < FP32_TOLERANCE * 4


@pytest.mark.parametrize("T", [3, 20])
def test_what_is_not_finite_shows_in_its_column_only(gpu, stored_weight, rng, T):
    codec, payload = stored_weight("q6_g64_fp16", (64, 256))
    weight = pack_weight(codec, payload, gpu)
    words = random_x(rng, T, 256)
    words[1, 77] = 0x7F80
    words[2, 5] = 0x7FC0
    out = gpu.to_host(linear(gpu.from_host(words), weight))
    assert not np.isfinite(out[1:3]).any()
    assert np.isfinite(np.delete(out, [1, 2], axis=0)).all()


@pytest.mark.parametrize("T", [1, 8, 33])
def test_nothing_beside_the_output_is_written(gpu, stored_weight, rng, T):
    codec, payload = stored_weight("q5_g64_fp16", (100, 192))
    weight = pack_weight(codec, payload, gpu)
    wide_x = gpu.from_host(np.full((T + 1, 200), 0x7FC0, np.uint16))
    with gpu.on_stream():
        wide_x.array[:T, 3:195] = gpu.upload(random_x(rng, T, 192))
    around = poisoned(gpu, T + 2, 110, DType.BF16)
    linear(wide_x[:T, 3:195], weight, out=around[1 : T + 1, 4:104])
    found = gpu.to_host(around)
    inside = np.zeros(found.shape, bool)
    inside[1 : T + 1, 4:104] = True
    assert np.isnan(found[~inside]).all()
    assert np.isfinite(found[inside]).all()


@pytest.mark.parametrize("T", [1, 8, 16, 128])
def test_a_graph_repeats_and_is_updated(gpu, stored_weight, rng, T):
    codec, payload = stored_weight("q4_g64_fp16", (2176, 5120))
    weight = pack_weight(codec, payload, gpu)
    x = gpu.from_host(random_x(rng, T, 5120))
    first, second = (poisoned(gpu, T, 2176, DType.BF16) for _ in range(2))

    def into(out):
        linear(x, weight, out=out)

    into(first)
    expected = gpu.to_host(first)
    graph = gpu.capture(lambda: into(first))
    with gpu.on_stream():
        first.array[...] = 0x7FC0
    for _ in range(3):
        graph.replay()
    np.testing.assert_array_equal(gpu.to_host(first), expected)
    graph.update(lambda: into(second))
    graph.replay()
    np.testing.assert_array_equal(gpu.to_host(second), expected)
    graph.close()


def test_other_weights_and_activations_are_refused(gpu, stored_weight, rng):
    codec, payload = stored_weight("bf16", (16, 64))
    weight = pack_weight(codec, payload, gpu)
    with pytest.raises(UnsupportedOpError, match="fp32"):
        linear(gpu.from_host(np.ones((1, 64), np.float32)), weight)
    x = gpu.from_host(random_x(rng, 2, 128))
    with pytest.raises(UnsupportedOpError, match="strided"):
        linear(Tensor(x.array[:, ::2], DType.BF16, gpu), weight)
