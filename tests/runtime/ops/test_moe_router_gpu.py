"""The kernels against float64; near ties may go either way, exact ones may not."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.device import DType
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.moe_router import Routing, moe_router

pytestmark = pytest.mark.gpu

CASES = [
    (1, 2048, 256, 8),
    (2, 2048, 256, 8),
    (8, 2048, 256, 8),
    (64, 2048, 256, 8),
    (65, 2048, 256, 8),
    (300, 2048, 256, 8),
    (3, 128, 8, 2),
    (9, 264, 33, 32),
    (17, 4096, 512, 10),
]
"""T, D, E, A."""

TOLERANCE = 1e-5


def poisoned(gpu, T, A) -> Routing:
    return Routing(
        gpu.from_host(np.full((T, A), -1, np.int32)),
        gpu.from_host(np.full((T, A), np.nan, np.float32)),
        gpu.from_host(np.full((T,), np.nan, np.float32)),
    )


def inputs(gpu, rng, T, D, E):
    x = gpu.from_host(rng.standard_normal((T, D)).astype(np.float32), DType.BF16)
    weight = 2 * rng.standard_normal((E + 1, D)) / np.sqrt(D)
    return x, gpu.from_host(weight.astype(np.float32), DType.BF16)


@pytest.mark.parametrize(("T", "D", "E", "A"), CASES)
def test_matches_the_definition(gpu, rng, T, D, E, A):
    x, weight = inputs(gpu, rng, T, D, E)
    out = poisoned(gpu, T, A)
    moe_router(x, weight, experts_per_token=A, out=out)
    scores = gpu.to_host(x).astype(np.float64) @ gpu.to_host(weight).astype(np.float64).T
    experts = gpu.to_host(out.experts)
    assert all(len(set(row)) == A for row in experts)
    chosen = np.take_along_axis(scores, experts, axis=1)
    best = -np.sort(-scores[:, :E], axis=1)[:, :A]
    np.testing.assert_allclose(chosen, best, rtol=0, atol=TOLERANCE)
    exponentials = np.exp(chosen - best[:, :1])
    expected = exponentials / exponentials.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(gpu.to_host(out.weights), expected, rtol=0, atol=TOLERANCE)
    shared = 1 / (1 + np.exp(-scores[:, E]))
    np.testing.assert_allclose(gpu.to_host(out.shared_weights), shared, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("T", [1, 70])
def test_the_lower_of_equal_experts_comes_first(gpu, rng, T):
    """Each row of weights stands several times, in random places."""
    x, few = inputs(gpu, rng, T, 256, 8)
    source = np.append(rng.integers(0, 8, 100), 8)
    weight = gpu.from_host(gpu.to_host(few)[source], DType.BF16)
    found = gpu.to_host(moe_router(x, weight, experts_per_token=32).experts)
    scores = gpu.to_host(x).astype(np.float64) @ gpu.to_host(few).astype(np.float64).T
    for t in range(T):
        order = sorted(range(100), key=lambda expert: (-scores[t, source[expert]], expert))
        assert found[t].tolist() == order[:32]


@pytest.mark.parametrize("expert", [0, 7, 40])
def test_what_is_not_a_number_is_not_lost(gpu, rng, expert):
    x, weight = inputs(gpu, rng, 3, 128, 40)
    values = gpu.to_host(weight)
    values[expert, 5] = np.nan
    out = moe_router(x, gpu.from_host(values, DType.BF16), experts_per_token=4)
    spoiled = out.shared_weights if expert == 40 else out.weights
    clean = out.weights if expert == 40 else out.shared_weights
    assert np.isnan(gpu.to_host(spoiled)).all()
    assert np.isfinite(gpu.to_host(clean)).all()
    assert all(len(set(row)) == 4 for row in gpu.to_host(out.experts))


def test_rows_may_be_strided(gpu, rng):
    x, weight = inputs(gpu, rng, 5, 256, 16)
    wide = np.full((5, 272), np.nan, np.float32)
    wide[:, 8:264] = gpu.to_host(x)
    strided = gpu.from_host(wide, DType.BF16)[:, 8:264]
    found = moe_router(strided, weight, experts_per_token=3)
    expected = moe_router(x, weight, experts_per_token=3)
    for each, other in zip(found.tensors, expected.tensors, strict=True):
        np.testing.assert_array_equal(gpu.to_host(each), gpu.to_host(other))


def test_a_captured_call_gives_the_same_every_time(gpu, rng):
    x, weight = inputs(gpu, rng, 40, 2048, 256)
    out, expected = poisoned(gpu, 40, 8), moe_router(x, weight, experts_per_token=8)
    graph = gpu.capture(lambda: moe_router(x, weight, experts_per_token=8, out=out))
    for _ in range(20):
        for each in out.tensors:
            gpu.clear(each)
        graph.replay()
        for found, other in zip(out.tensors, expected.tensors, strict=True):
            np.testing.assert_array_equal(gpu.to_host(found), gpu.to_host(other))
    graph.close()


def test_what_has_no_kernel_is_refused(gpu, rng):
    x, weight = inputs(gpu, rng, 2, 128, 40)
    rows = gpu.to_host(x)
    for wrong in (gpu.from_host(rows), gpu.from_host(rows, DType.BF16)[:, 1:121]):
        with pytest.raises(UnsupportedOpError, match="moe_router"):
            moe_router(wrong, weight[:, : wrong.shape[1]], experts_per_token=2)
    with pytest.raises(UnsupportedOpError, match="33 of 40"):
        moe_router(x, weight, experts_per_token=33)
