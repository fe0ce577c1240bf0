"""Row tiles that two blocks share, on a GPU, whatever becomes of the product."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.runtime.packed_weights import pack_weight
from tests.runtime.stored_weights import random_stored

from ninfer_runtime.device import DType
from ninfer_runtime.ops.linear.activations import pack
from ninfer_runtime.ops.linear.cuda import multiply
from ninfer_runtime.ops.linear.epilogue import STORED, added, gated
from ninfer_runtime.ops.linear.exchange import TURNS
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.schedule import Skinny, problem_of
from ninfer_runtime.ops.product_input import ProductInput

pytestmark = pytest.mark.gpu

K = 64 * 16 * 3
"""48 records: two blocks of 8 warps split them evenly, two of 16 do not."""

SPLIT: dict[str, dict[str, Any]] = {
    "even": {"warps": 8, "stage": 2, "last": 1, "ahead": 1},
    "even, x in registers": {"warps": 8, "stage": 3, "last": 3, "x_place": 3},
    "even, words held": {"warps": 8, "stage": 2, "last": 1, "held": 1},
    "even, x in registers, words held": {
        "warps": 8,
        "stage": 2,
        "last": 1,
        "x_place": 3,
        "held": 1,
    },
    "uneven, words held": {"stage": 2, "last": 0, "x_place": 2, "held": 1},
    "uneven, x in registers": {"stage": 1, "last": 0, "x_place": 2, "stages": 3, "ahead": 2},
}

CASES = [
    pytest.param(
        replace(Skinny(x_rows, 16, 0, 0, 2, splits=2), **options), id=f"{x_rows} rows, {name}"
    )
    for x_rows in (1, 4, 8)
    for name, options in SPLIT.items()
]


@pytest.fixture(scope="module")
def largest(gpu):
    """A weight with two or three row tiles for each pair of multiprocessors, and its values."""
    N = 16 * (gpu.target.multiprocessors // 2 * 3 - 5)
    codec, payload = random_stored(np.random.default_rng(5), "q5_g64_fp16", (N, K))
    values = codec.decode(payload).reshape(N, K)
    return pack_weight(codec, payload, gpu), values.astype(np.float64)


@pytest.fixture
def product(gpu, largest, rng):
    """Multiply the first row tiles with random rows: the launch, and the result in float64."""

    def make(schedule, out, tiles, epilogue=STORED):
        weight, values = largest
        N, T = 16 * tiles, schedule.x_rows
        part = PackedWeight(weight.format, (N, K), weight.data[:tiles], None, gpu)
        assert schedule.fits(problem_of(part.record_format, part.shape, T), gpu.target)
        x = gpu.from_host(rng.standard_normal((T, K)).astype(np.float32), DType.BF16)
        with gpu.workspace.frame():
            multiply(gpu, pack(gpu, x, part), part, out, schedule, epilogue=epilogue)
        return gpu.to_host(x).astype(np.float64) @ values[:N].T

    return make


def poisoned(gpu, shape):
    return gpu.from_host(np.full(shape, np.nan, np.float32))


@pytest.mark.parametrize("fewer", [0, 1, 2])
@pytest.mark.parametrize("schedule", CASES)
def test_products_of_pairs_of_blocks(gpu, largest, product, schedule, fewer):
    tiles = largest[0].data.shape[0] - gpu.target.multiprocessors // 2 * fewer
    for _ in range(TURNS + 1):  # the memory that sums go through is used again
        out = poisoned(gpu, (schedule.x_rows, 16 * tiles))
        expected = product(schedule, out, tiles)
        error = np.linalg.norm(gpu.to_host(out) - expected)
        assert error < 3e-5 * np.linalg.norm(expected)  # as for every schedule


@pytest.mark.parametrize("schedule", CASES)
def test_sums_of_pairs_of_blocks(gpu, largest, product, rng, schedule):
    tiles = largest[0].data.shape[0]
    shape = schedule.x_rows, 16 * tiles
    residual = gpu.from_host(rng.standard_normal(shape).astype(np.float32), DType.BF16)
    before = gpu.to_host(residual).astype(np.float64)
    ones = gpu.from_host(np.ones(shape[1], np.float32), DType.BF16)
    out = ProductInput.empty(gpu, shape, DType.BF16)
    epilogue = added(residual, ones, out, offset=0.0, eps=1e-6)
    expected = before + product(schedule, residual, tiles, epilogue)
    found = gpu.to_host(residual).astype(np.float64)
    # Rounded to bf16 once; the float32 sums are those of the test above.
    np.testing.assert_allclose(found, expected, rtol=2**-8, atol=3e-5 * np.abs(expected).max())
    assert out.f16 is not None
    squares = gpu.to_host(out.f16.memory[1])
    np.testing.assert_allclose(squares, (found**2).reshape(len(found), -1, 16).sum(-1), rtol=1e-5)


@pytest.mark.parametrize("schedule", CASES)
def test_gated_products_of_pairs_of_blocks(gpu, largest, product, schedule):
    tiles = largest[0].data.shape[0]
    out = poisoned(gpu, (schedule.x_rows, 8 * tiles))
    turns = product(schedule, out, tiles, gated(out, f16=False, bf16=False))
    gate, up = np.moveaxis(turns.reshape(schedule.x_rows, tiles, 2, 8), 2, 0)
    expected = (gate / (1 + np.exp(-gate)) * up).reshape(out.shape)
    error = np.linalg.norm(gpu.to_host(out) - expected)
    assert error < 1e-4 * np.linalg.norm(expected)
