"""The kernels against float64, on random words, with poisoned outputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.runtime.packed_weights import pack_weight
from tests.runtime.stored_weights import random_stored

from ninfer_runtime.device import DType
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.moe_experts import ExpertWeights, moe_experts
from ninfer_runtime.ops.moe_experts.cases import BANK_FORMATS, BankFormats, ExpertsCase
from ninfer_runtime.ops.moe_router import Routing

pytestmark = pytest.mark.gpu

TOKENS = (1, 2, 8, 9, 64, 65, 300)
SMALL = ExpertsCase(max(TOKENS), 256, 16, 4, 128, 256)
LARGE = ExpertsCase(70, 2048, 12, 8, 512, 512)

TOLERANCES = {DType.FP32: 4e-4, DType.BF16: 4e-3}
"""Relative errors (2-norm): the products that down gets are rounded to binary16, whose values are up
to 2^-11 away; results in bf16 are rounded once more."""

BF16_TOLERANCE = 4e-3
"""With bf16 matrices those products are rounded to bf16."""


class Layer:
    """A layer of random words on a GPU, and its values on the host."""

    def __init__(self, gpu, rng, case: ExpertsCase, formats: BankFormats):
        D, E = case.width, case.experts
        shapes = {
            "gate_up": (E * 2 * case.inner, D),
            "down": (E * D, case.inner),
            "shared_gate_up": (2 * case.shared, D),
            "shared_down": (D, case.shared),
        }
        names = {
            "gate_up": formats.gate_up[0],
            "down": formats.down[0],
            "shared_gate_up": formats.gate_up[1],
            "shared_down": formats.down[1],
        }
        self.case, self.values, packed = case, {}, {}
        for name, shape in shapes.items():
            codec, payload = random_stored(rng, names[name], shape)
            packed[name] = pack_weight(codec, payload, gpu)
            self.values[name] = codec.decode(payload).reshape(shape).astype(np.float64)
        self.weights = ExpertWeights(**packed)
        # Rows of x for which inputs of gates are of the size of 1, and a weight of the shared expert
        # for which it counts as much as the others.
        self.scale = 1 / self.size_of("gate_up")
        larger = self.size_of("shared_gate_up") / self.size_of("gate_up")
        self.shared_scale = self.size_of("down") / self.size_of("shared_down") / larger**2

    def size_of(self, name):
        """The norm of a matrix's rows."""
        return np.sqrt((self.values[name][:64] ** 2).sum(axis=1).mean())

    def expected(self, x, experts, weights, shared_weights):
        D, inner = self.case.width, self.case.inner
        values = self.values
        result = shared_weights[:, None] * run(x, values["shared_gate_up"], values["shared_down"])
        for e in np.unique(experts):
            tokens, places = np.nonzero(experts == e)
            gate_up = values["gate_up"][e * 2 * inner : (e + 1) * 2 * inner]
            down = values["down"][e * D : (e + 1) * D]
            result[tokens] += weights[tokens, places, None] * run(x[tokens], gate_up, down)
        return result


def run(x, gate_up, down):
    gate, up = np.split(x @ gate_up.T, 2, axis=1)
    return (gate * np.exp(-np.logaddexp(0, -gate)) * up) @ down.T


def random_routing(gpu, rng, layer, T, choose=None) -> Routing:
    case = layer.case
    A = case.experts_per_token
    chosen = [choose or rng.permutation(case.experts)[:A] for _ in range(T)]
    weights = rng.random((T, A)) + 0.1
    return Routing(
        gpu.from_host(np.array(chosen, np.int32)),
        gpu.from_host((weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)),
        gpu.from_host((layer.shared_scale * rng.random(T)).astype(np.float32)),
    )


def random_rows(gpu, rng, layer, T):
    x = rng.standard_normal((T, layer.case.width)) * layer.scale
    return gpu.from_host(x.astype(np.float32), DType.BF16)


def poisoned(gpu, shape, dtype):
    return gpu.from_host(
        np.full(shape, np.nan, np.float32)
        if dtype is DType.FP32
        else np.full(shape, 0x7FC0, np.uint16)
    )


def error_of(gpu, layer, x, routing, out):
    host = (gpu.to_host(each) for each in (x, *routing.tensors))
    x_values, experts, *weights = (each.astype(np.float64) for each in host)
    expected = layer.expected(x_values, experts.astype(int), *weights)
    return float(np.linalg.norm(gpu.to_host(out) - expected) / np.linalg.norm(expected))


def tolerance_of(formats: BankFormats, dtype):
    return max(TOLERANCES[dtype], BF16_TOLERANCE if "bf16" in formats.down else 0)


@pytest.mark.parametrize("formats", BANK_FORMATS, ids=lambda each: "-".join(each.down))
@pytest.mark.parametrize("case", [SMALL, LARGE], ids=["small", "large"])
def test_matches_the_formula(gpu, rng, formats, case):
    layer = Layer(gpu, rng, case, formats)
    x = random_rows(gpu, rng, layer, case.tokens)
    routing = random_routing(gpu, rng, layer, case.tokens)
    for T in (each for each in TOKENS if each <= case.tokens):
        part = Routing(*(each[:T] for each in routing.tensors))
        for dtype in (DType.FP32, DType.BF16):
            out = poisoned(gpu, (T, case.width), dtype)
            moe_experts(x[:T], part, layer.weights, out=out)
            error = error_of(gpu, layer, x[:T], part, out)
            assert error < tolerance_of(formats, dtype), f"T = {T}, {dtype}: {error}"


@pytest.mark.parametrize("formats", BANK_FORMATS, ids=lambda each: "-".join(each.down))
def test_the_kernels_of_gpus_without_warpgroups(gpu, rng, monkeypatch, formats):
    """This GPU with the multiplication instructions and the shared memory of an RTX 4090."""
    smaller = replace(gpu.target, capability=(8, 9), shared_bytes=99 * 1024)
    monkeypatch.setattr(gpu, "target", smaller)
    layer = Layer(gpu, rng, SMALL, formats)
    x = random_rows(gpu, rng, layer, SMALL.tokens)
    routing = random_routing(gpu, rng, layer, SMALL.tokens)
    for T in (1, 9, 64, 300):
        part = Routing(*(each[:T] for each in routing.tensors))
        out = poisoned(gpu, (T, SMALL.width), DType.FP32)
        moe_experts(x[:T], part, layer.weights, out=out)
        error = error_of(gpu, layer, x[:T], part, out)
        assert error < tolerance_of(formats, DType.FP32), f"T = {T}: {error}"


@pytest.mark.parametrize("T", TOKENS)
def test_all_tokens_may_choose_the_same_experts(gpu, rng, T):
    layer = Layer(gpu, rng, SMALL, BANK_FORMATS[0])
    x = random_rows(gpu, rng, layer, T)
    routing = random_routing(gpu, rng, layer, T, choose=[15, 0, 7, 3])
    out = poisoned(gpu, (T, SMALL.width), DType.FP32)
    moe_experts(x, routing, layer.weights, out=out)
    assert error_of(gpu, layer, x, routing, out) < TOLERANCES[DType.FP32]


@pytest.mark.parametrize("T", [1, 8, 30, 300])
@pytest.mark.parametrize("formats", [BANK_FORMATS[0], BANK_FORMATS[2], BANK_FORMATS[-1]])
def test_products_beyond_binary16(gpu, rng, formats, T):
    """Rows of very different sizes: products are from 1 to 2^40."""
    layer = Layer(gpu, rng, SMALL, formats)
    sizes = 2.0 ** rng.integers(0, 20, (T, 1))
    x = random_rows(gpu, rng, layer, T)
    x = gpu.from_host((gpu.to_host(x) * sizes).astype(np.float32), DType.BF16)
    routing = random_routing(gpu, rng, layer, T)
    out = poisoned(gpu, (T, SMALL.width), DType.FP32)
    moe_experts(x, routing, layer.weights, out=out)
    for t in range(T):
        part = Routing(*(each[t : t + 1] for each in routing.tensors))
        error = error_of(gpu, layer, x[t : t + 1], part, out[t : t + 1])
        assert error < 4 * tolerance_of(formats, DType.FP32), f"{t}, {sizes[t]}: {error}"


@pytest.mark.parametrize("T", [1, 8, 64, 300])
def test_a_captured_call_gives_the_same_every_time(gpu, rng, T):
    layer = Layer(gpu, rng, SMALL, BANK_FORMATS[0])
    x, routing = random_rows(gpu, rng, layer, T), random_routing(gpu, rng, layer, T)
    out = poisoned(gpu, (T, SMALL.width), DType.BF16)
    expected = gpu.to_host(moe_experts(x, routing, layer.weights))
    graph = gpu.capture(lambda: moe_experts(x, routing, layer.weights, out=out))
    for _ in range(20):
        gpu.clear(out)
        graph.replay()
        np.testing.assert_array_equal(gpu.to_host(out), expected)
    graph.close()


def test_what_has_no_kernel_is_refused(gpu, rng):
    layer = Layer(gpu, rng, SMALL, BANK_FORMATS[0])
    x, routing = random_rows(gpu, rng, layer, 2), random_routing(gpu, rng, layer, 2)
    with pytest.raises(UnsupportedOpError, match="moe_experts"):
        moe_experts(gpu.from_host(gpu.to_host(x)), routing, layer.weights)
