"""Prompts: a weight is decoded to bf16 once, and the library multiplies."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.packed_weights import pack_weight

from ninfer_runtime.cuda.target import TYPICAL_TARGETS
from ninfer_runtime.device import DType
from ninfer_runtime.device.dtypes import bf16_to_float32, float32_to_bf16
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear import library, linear, stacked_linear
from ninfer_runtime.ops.linear.cases import WEIGHT_FORMATS
from ninfer_runtime.ops.linear.tuning import decodes_first
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS

T = 1030
FP32_TOLERANCE, BF16_TOLERANCE = 3e-5, 4e-3


def relative_error(found, expected):
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def rounded(values):
    return bf16_to_float32(float32_to_bf16(values)).astype(np.float64)


@pytest.fixture
def poisoned_on(gpu):
    def make(shape, dtype):
        words = np.full(shape, 0x7FC0, np.uint16)
        values = np.full(shape, np.nan, np.float32)
        return gpu.from_host(values if dtype is DType.FP32 else words)

    return make


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (name, shape)
        for name in WEIGHT_FORMATS
        for shape in [(128, 128), (384, 1152), (77, 200)]
        if name != "nvfp4" or shape[0] % 128 == 0  # which stores rows by 128
    ],
)
def test_the_product_with_weights_rounded_to_bf16(
    gpu, stored_weight, poisoned_on, rng, name, shape
):
    codec, payload = stored_weight(name, shape)
    weight = pack_weight(codec, payload, gpu)
    assert decodes_first(weight.record_format, T, gpu.target)
    x = gpu.from_host(rng.standard_normal((T, shape[1])).astype(np.float32), DType.BF16)
    expected = gpu.to_host(x).astype(np.float64) @ rounded(codec.decode(payload).reshape(shape)).T
    for dtype, tolerance in ((DType.FP32, FP32_TOLERANCE), (DType.BF16, BF16_TOLERANCE)):
        out = poisoned_on((T, shape[0]), dtype)
        linear(x, weight, out=out)
        assert relative_error(gpu.to_host(out), expected) < tolerance


@pytest.mark.gpu
def test_a_weight_is_decoded_in_parts(gpu, stored_weight, poisoned_on, rng, monkeypatch):
    monkeypatch.setattr(library, "SCRATCH_BYTES", 5 * 16 * 256 * 2)  # five of 13 row tiles
    codec, payload = stored_weight("fp8_e4m3fn_row_bf16", (200, 256))
    weight = pack_weight(codec, payload, gpu)
    x = gpu.from_host(rng.standard_normal((T, 256)).astype(np.float32), DType.BF16)
    out = poisoned_on((T, 200), DType.FP32)
    linear(x, weight, out=out)
    values = rounded(codec.decode(payload).reshape(200, 256))
    expected = gpu.to_host(x).astype(np.float64) @ values.T
    assert relative_error(gpu.to_host(out), expected) < FP32_TOLERANCE


@pytest.mark.gpu
def test_several_weights_write_side_by_side_and_nothing_else(gpu, stored_weight, poisoned_on, rng):
    weights, values = [], []
    for name, N in (("q4_g64_fp16", 128), ("bf16", 48), ("q5_g64_fp16", 256)):
        codec, payload = stored_weight(name, (N, 320))
        weights.append(pack_weight(codec, payload, gpu))
        values.append(rounded(codec.decode(payload).reshape(N, 320)))
    x = gpu.from_host(rng.standard_normal((T, 320)).astype(np.float32), DType.BF16)
    around = poisoned_on((T + 2, 432 + 16), DType.BF16)
    stacked_linear(x, weights, out=around[1:-1, 8:-8])
    found = gpu.to_host(around)
    expected = gpu.to_host(x).astype(np.float64) @ np.concatenate(values).T
    assert relative_error(found[1:-1, 8:-8], expected) < BF16_TOLERANCE
    inside = np.zeros(found.shape, bool)
    inside[1:-1, 8:-8] = True
    assert np.isnan(found[~inside]).all()


@pytest.mark.gpu
def test_no_graph_captures_it(gpu, stored_weight, rng):
    codec, payload = stored_weight("q4_g64_fp16", (128, 128))
    weight = pack_weight(codec, payload, gpu)
    x = gpu.from_host(rng.standard_normal((T, 128)).astype(np.float32), DType.BF16)
    with pytest.raises(UnsupportedOpError, match="while a graph is captured"):
        gpu.capture(lambda: linear(x, weight))


@pytest.mark.parametrize("architecture", TYPICAL_TARGETS)
@pytest.mark.parametrize("record_format", RECORD_FORMATS.values(), ids=lambda each: each.name)
def test_few_columns_are_multiplied_as_stored_and_a_prompt_is_not(architecture, record_format):
    target = TYPICAL_TARGETS[architecture]
    choices = [decodes_first(record_format, columns, target) for columns in range(1, T)]
    assert not any(choices[:24])
    assert choices[-1]
    assert choices == sorted(choices)  # from one number of columns on


def test_narrow_formats_are_read_more_often_before_they_are_decoded():
    def crossover(name):
        target = TYPICAL_TARGETS["sm_89"]
        columns = range(1, T)
        return next(n for n in columns if decodes_first(RECORD_FORMATS[name], n, target))

    # One more turn of 8 columns than (bytes of a decoded weight, written and read) / stored bytes.
    assert crossover("bf16") == 8 * 3 + 1
    assert crossover("q4_g64_fp16") == 8 * 8 + 1
