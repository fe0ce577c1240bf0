"""Products of the same rows in one launch, on a GPU, against float64 and the separate launches."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.packed_weights import pack_weight

from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.device import DType
from ninfer_runtime.ops.add_rms_norm import add_product_rms_norm
from ninfer_runtime.ops.linear import Product, stacked_linear
from ninfer_runtime.ops.linear.activations import pack
from ninfer_runtime.ops.linear.cuda import multiply
from ninfer_runtime.ops.linear.schedule import problem_of
from ninfer_runtime.ops.linear.stacked import choose_stacked

pytestmark = pytest.mark.gpu

Q4, Q5, Q8, FP8 = "q4_g64_fp16", "q5_g64_fp16", "q8_g32_fp16", "fp8_e4m3fn_row_bf16"
STACKS = [
    (5120, ((Q5, 2400), (Q4, 1000), ("bf16", 96))),
    (5120, ((Q4, 1120), (Q5, 1136))),
    (5120, ((FP8, 2416), ("bf16", 96))),
    (2048, ((Q8, 9000), ("bf16", 64))),
]
EPS = 1e-6


@pytest.fixture
def device(gpu):
    return gpu


@pytest.fixture
def stack(gpu, stored_weight):
    """Weights of several formats, and their values in float64 one below the other."""

    def make(K, parts):
        weights, values = [], []
        for name, N in parts:
            codec, payload = stored_weight(name, (N, K))
            weights.append(pack_weight(codec, payload, gpu))
            values.append(codec.decode(payload).reshape(N, K).astype(np.float64))
        return weights, np.concatenate(values)

    return make


def launches(gpu, work):
    """The sources of the kernels that some work launches, with repetition."""
    found: list[Kernel] = []
    with gpu.observed(found.append):
        work()
    return [kernel.source.rsplit("/", 1)[-1] for kernel in found]


@pytest.mark.parametrize(("K", "parts"), STACKS)
def test_one_launch_multiplies_as_separate_ones_do(gpu, stack, tensor, poisoned, rng, K, parts):
    weights, values = stack(K, parts)
    for T in (1, 3, 8):
        x = tensor(rng.standard_normal((T, K)), DType.BF16)
        for dtype, tolerance in ((DType.FP32, 3e-5), (DType.BF16, 4e-3)):
            out = poisoned((T, len(values)), dtype)
            sources = launches(gpu, lambda x=x, out=out: stacked_linear(x, weights, out=out))
            assert [name for name in sources if name != "activations.cu"] == ["stacked.cu"]
            found = gpu.to_host(out).astype(np.float64)
            wanted = gpu.to_host(x).astype(np.float64) @ values.T
            error = np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
            assert (error < tolerance).all(), (T, dtype, error)
            np.testing.assert_array_equal(found, separate(gpu, x, weights, poisoned, dtype))


def separate(gpu, x, weights, poisoned, dtype):
    T = x.shape[0]
    order = sorted(weights, key=lambda weight: weight.num_bytes)
    problems = [problem_of(w.record_format, w.shape, T) for w in order]
    stacked = choose_stacked(problems, gpu.target)
    assert stacked is not None
    schedules = {id(w): part for w, part in zip(order, stacked.parts, strict=True)}
    results = []
    for weight in weights:
        out = poisoned((T, weight.shape[0]), dtype)
        with gpu.workspace.frame():
            multiply(gpu, pack(gpu, x, weight), weight, out, schedules[id(weight)])
        results.append(gpu.to_host(out).astype(np.float64))
    return np.concatenate(results, axis=1)


@pytest.mark.parametrize(("K", "parts"), STACKS)
def test_a_norm_is_finished(gpu, stack, stored_weight, tensor, rng, K, parts):
    weights, values = stack(K, parts)
    codec, payload = stored_weight(Q4, (K, 384))
    matrix = pack_weight(codec, payload, gpu)
    scale = tensor(0.3 * rng.standard_normal(K), DType.BF16)
    for T in (1, 3, 8):
        x = tensor(3 * rng.standard_normal((T, K)), DType.BF16)
        rows = tensor(rng.standard_normal((T, 384)), DType.BF16)
        sums = add_product_rms_norm(x, Product(rows, matrix), scale, eps=EPS, unit_offset=True)
        found = gpu.to_host(stacked_linear(sums, weights)).astype(np.float64)
        after = gpu.to_host(x).astype(np.float64)
        normed = after / np.sqrt((after * after).mean(axis=-1, keepdims=True) + EPS)
        wanted = normed * (1 + gpu.to_host(scale).astype(np.float64)) @ values.T
        error = np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
        assert (error < 6e-3).all(), (T, error)
