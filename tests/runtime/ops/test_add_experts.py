"""What experts make of rows, added to a residual: chosen, multiplied and added by one kernel on a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import pytest
from tests.runtime.packed_weights import pack_weight
from tests.runtime.stored_weights import random_stored

from ninfer_runtime.device import DType
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.add_rms_norm import add_product_rms_norm, add_rms_norm
from ninfer_runtime.ops.linear import Product, stacked_linear
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.moe_experts import ExpertsProduct, ExpertWeights, moe_experts
from ninfer_runtime.ops.moe_experts.cases import BANK_FORMATS, BankFormats
from ninfer_runtime.ops.moe_experts.exchange import exchange_of
from ninfer_runtime.ops.moe_router import moe_router

ON_CUDA = True
EPS = 1e-6
TOKENS = (1, 2, 3, 4, 5, 8, 9)
REPEATED = (16, 17)
"""Different gates and different down matrices: no two of up to 272 experts have both alike."""


@dataclass(frozen=True)
class Sizes:
    """D, E, A, I and S of a layer; D of what makes its rows."""

    width: int
    experts: int
    per_token: int
    inner: int
    shared: int
    before: int = 128


SMALL = Sizes(256, 40, 4, 128, 256)
LARGE = Sizes(2048, 256, 8, 512, 512)
OTHERS = (
    Sizes(128, 3, 3, 128, 128),
    Sizes(384, 33, 32, 128, 128),
    Sizes(1152, 60, 8, 128, 128),
    Sizes(2176, 24, 4, 128, 128),
    Sizes(256, 300, 4, 128, 128),
)


class Layer:
    """A layer of random words, with what comes before and after it; its values in float64."""

    def __init__(self, device, rng, sizes: Sizes, formats: BankFormats, *, ties=False):
        D, self.sizes, self.formats, self.device = sizes.width, sizes, formats, device
        banks = self._bank(rng, formats.gate_up[0], 2 * sizes.inner, D, REPEATED[0])
        self.gate_up, gate_up = banks
        self.down, down = self._bank(rng, formats.down[0], D, sizes.inner, REPEATED[1])
        self.shared_gate_up, shared_gate_up = self._matrix(
            rng, formats.gate_up[1], 2 * sizes.shared, D
        )
        self.shared_down, shared_down = self._matrix(rng, formats.down[1], D, sizes.shared)
        self.weights = ExpertWeights(gate_up, down, shared_gate_up, shared_down)
        router = 2 * rng.standard_normal((sizes.experts + 1, D)) / np.sqrt(D)
        if ties:
            router[:-1] = router[rng.integers(0, max(1, sizes.experts // 8), sizes.experts)]
        self.router = device.from_host(router.astype(np.float32), DType.BF16)
        self.before_values, self.before = self._matrix(rng, "q8_g32_fp16", D, sizes.before)
        self.following = [self._matrix(rng, name, 64, D) for name in ("q6_g64_fp16", "bf16")]
        # Norms for which inputs of gates are of the size of 1, and a residual like what is added.
        gain = 1 / np.sqrt((self.gate_up[0][:64] ** 2).sum(axis=1).mean())
        self.norm = self._norm(rng, gain)
        self.next_norm = self._norm(rng, 1.0)

    def _norm(self, rng, gain):
        values = gain * (1 + 0.2 * rng.standard_normal(self.sizes.width))
        return self.device.from_host(values.astype(np.float32), DType.BF16)

    def _matrix(self, rng, name, N, K):
        codec, payload = random_stored(rng, name, (N, K))
        values = codec.decode(payload).reshape(N, K).astype(np.float64)
        return values, pack_weight(codec, payload, self.device)

    def _bank(self, rng, name, N, K, different):
        """Matrices of all experts, of which every `different`-th is the same."""
        E = self.sizes.experts
        different = min(different, E)
        values, packed = self._matrix(rng, name, different * N, K)
        on_cpu = self.device.kind == "cpu"
        xp = np if on_cpu else self.device.xp
        order = np.arange(E) % different

        def repeat(array):
            parts = array.reshape(different, -1, *array.shape[1:])
            return xp.concatenate([parts[i] for i in order])

        # On the device's own stream: its kernels would not wait for another one.
        with nullcontext() if on_cpu else self.device.on_stream():
            data = repeat(packed.data)
            row_scale = None if packed.row_scale is None else repeat(packed.row_scale)
        bank = PackedWeight(name, (E * N, K), data, row_scale, self.device)
        return values.reshape(different, N, K), bank

    def rows(self, rng, T):
        """A residual and what the kernel before makes of it: rows whose norm is left to products."""
        x = rng.standard_normal((T, self.sizes.width))
        x = self.device.from_host(x.astype(np.float32), DType.BF16)
        before = rng.standard_normal((T, self.sizes.before)) * 0.1
        before = self.device.from_host(before.astype(np.float32), DType.BF16)
        out = add_product_rms_norm(x, Product(before, self.before), self.norm, eps=EPS)
        return x, out

    def product(self, rows) -> ExpertsProduct:
        return ExpertsProduct(rows, self.router, self.weights, self.sizes.per_token)

    def expected(self, x, rows):
        """What is added to the sums `x`, which experts are chosen, and all scores."""
        as_bf16, as_f16 = self.rounded_rows(x, rows)
        scores = as_bf16 @ self.device.to_host(self.router).astype(np.float64).T
        experts = np.argsort(-scores[:, :-1], axis=1, kind="stable")[:, : self.sizes.per_token]
        chosen = np.take_along_axis(scores, experts, axis=1)
        weights = np.exp(chosen - chosen[:, :1])
        weights /= weights.sum(axis=1, keepdims=True)
        of_format = {True: as_bf16, False: as_f16}
        rows, shared_rows = (of_format[name == "bf16"] for name in self.formats.gate_up)
        shared = run(shared_rows, self.shared_gate_up, self.shared_down)
        added = shared / (1 + np.exp(-scores[:, -1:]))
        for t, a in np.ndindex(*experts.shape):
            e = experts[t, a]
            gate_up, down = self.gate_up[e % len(self.gate_up)], self.down[e % len(self.down)]
            added[t] += weights[t, a] * run(rows[t : t + 1], gate_up, down)[0]
        return added, experts, scores

    def rounded_rows(self, x, rows):
        """The normalised sums as products take them: as bf16, and as f16."""
        if not is_unfinished(self.device, x):
            return (self.device.to_host(rows).astype(np.float64),) * 2
        sums = self.device.to_host(x).astype(np.float32)
        factor = 1 / np.sqrt((sums.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + EPS)
        weighted = sums * self.device.to_host(self.norm).astype(np.float32)
        as_f16 = (weighted / np.float32(64)).astype(np.float16).astype(np.float64) * 64
        return round_to_bf16(weighted) * factor, as_f16 * factor


def is_unfinished(device, x):
    """Whether a norm of `x` is left to the products that follow."""
    return device.kind == "cuda" and x.shape[0] <= 8


def run(x, gate_up, down):
    gate, up = np.split(x @ gate_up.T, 2, axis=1)
    return (gate * np.exp(-np.logaddexp(0, -gate)) * up) @ down.T


def round_to_bf16(values):
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    bits = bits + 0x7FFF + (bits >> 16 & 1)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def check(layer: Layer, rng, T):
    """One call against float64: the sum, and products of its norm."""
    device = layer.device
    x, rows = layer.rows(rng, T)
    before = device.to_host(x).astype(np.float64)
    added, _, _ = layer.expected(x, rows)
    # The products that down gets are rounded to binary16 or bf16: relative errors (2-norm) of the result.
    relative = 4e-3 if "bf16" in layer.formats.down else 4e-4
    out = add_product_rms_norm(x, layer.product(rows), layer.next_norm, eps=EPS)
    found = device.to_host(x).astype(np.float64)
    expected = before + added
    size = np.sqrt((added**2).mean(axis=1, keepdims=True))
    # The sum is rounded to bf16, and for many tokens what is added before; of all elements none is
    # further off than ten times their mean.
    rounded = np.abs(expected) + np.abs(added) * (not is_unfinished(device, x))
    allowed = 2.0**-8 * rounded + 10 * relative * size
    assert (np.abs(found - expected) <= allowed).all(), (T, np.abs(found - expected).max(), size)
    normed = found / np.sqrt((found**2).mean(axis=1, keepdims=True) + EPS)
    normed *= device.to_host(layer.next_norm).astype(np.float64)
    products = stacked_linear(out, [weight for _, weight in layer.following])
    wanted = np.concatenate([normed @ values.T for values, _ in layer.following], axis=1)
    error = np.linalg.norm(device.to_host(products) - wanted, axis=1)
    assert (error < 6e-3 * np.linalg.norm(wanted, axis=1)).all(), (T, error)


@pytest.mark.parametrize("formats", BANK_FORMATS, ids=lambda each: "-".join(each.down))
def test_sum_and_products_of_its_norm(device, rng, formats):
    layer = Layer(device, rng, SMALL, formats)
    for T in TOKENS:
        check(layer, rng, T)


@pytest.mark.gpu
@pytest.mark.parametrize("formats", [BANK_FORMATS[0], BANK_FORMATS[-1]], ids=["q4-q5", "bf16"])
def test_the_size_of_a_model(gpu, rng, formats):
    layer = Layer(gpu, rng, LARGE, formats)
    for T in (1, 2, 8):
        check(layer, rng, T)


@pytest.mark.parametrize("sizes", OTHERS, ids=lambda each: f"D={each.width} E={each.experts}")
def test_other_sizes(device, rng, sizes):
    layer = Layer(device, rng, sizes, BANK_FORMATS[0])
    for T in (1, 7):
        check(layer, rng, T)


def test_the_lower_of_equal_experts_is_chosen(device, rng):
    """Each row of the router stands some eight times, so that every choice is one between equals."""
    layer = Layer(device, rng, replace(SMALL, experts=256), BANK_FORMATS[0], ties=True)
    for T in (1, 8):
        check(layer, rng, T)


@pytest.mark.gpu
def test_gpus_without_clusters(gpu, rng, monkeypatch):
    """This GPU with the multiplication instructions and the shared memory of an RTX 4090."""
    smaller = replace(gpu.target, capability=(8, 9), shared_bytes=99 * 1024)
    monkeypatch.setattr(gpu, "target", smaller)
    layer = Layer(gpu, rng, SMALL, BANK_FORMATS[0])
    for T in (1, 8):
        check(layer, rng, T)


@pytest.mark.gpu
@pytest.mark.parametrize("T", [1, 5, 8])
def test_ops_apart_take_rows_whose_norm_is_not_done(gpu, rng, T):
    layer = Layer(gpu, rng, SMALL, BANK_FORMATS[0])
    x, rows = layer.rows(rng, T)
    added, experts, scores = layer.expected(x, rows)
    routing = moe_router(rows, layer.router, experts_per_token=SMALL.per_token)
    np.testing.assert_array_equal(gpu.to_host(routing.experts), experts)
    shared = 1 / (1 + np.exp(-scores[:, -1]))
    np.testing.assert_allclose(gpu.to_host(routing.shared_weights), shared, rtol=0, atol=1e-5)
    out = gpu.from_host(np.full((T, SMALL.width), np.nan, np.float32))
    moe_experts(rows, routing, layer.weights, out=out)
    error = np.linalg.norm(gpu.to_host(out) - added) / np.linalg.norm(added)
    assert error < 4e-4


@pytest.mark.gpu
@pytest.mark.parametrize("T", [1, 8])
def test_the_same_every_time(gpu, rng, T):
    layer = Layer(gpu, rng, LARGE, BANK_FORMATS[0])
    x, rows = layer.rows(rng, T)
    start = gpu.to_host(x)
    results = []
    for _ in range(20):
        again = gpu.from_host(start, DType.BF16)
        add_product_rms_norm(again, layer.product(rows), layer.next_norm, eps=EPS)
        results.append(gpu.to_host(again))
    for each in results[1:]:
        np.testing.assert_array_equal(each, results[0])


def sums_of(layer: Layer, x, rows):
    """What the residual x [T, D] holds after the rows' experts are added; both in bf16, on the host."""
    device = layer.device
    sums = device.from_host(x, DType.BF16)
    rows = device.from_host(rows, DType.BF16)
    add_product_rms_norm(sums, layer.product(rows), layer.next_norm, eps=EPS)
    return device.to_host(sums)


def random_sums(rng, sizes: Sizes, T):
    return (rng.standard_normal((T, sizes.width)).astype(np.float32) for _ in range(2))


@pytest.mark.gpu
@pytest.mark.parametrize("formats", BANK_FORMATS, ids=lambda each: "-".join(each.down))
@pytest.mark.parametrize("sizes", [SMALL, LARGE], ids=["small", "large"])
def test_a_row_gets_the_same_alone(gpu, rng, formats, sizes):
    layer = Layer(gpu, rng, sizes, formats)
    x, rows = random_sums(rng, sizes, 8)
    together = sums_of(layer, x, rows)
    for T in (1, 3):
        for begin in range(0, 8 - T + 1, T):
            part = slice(begin, begin + T)
            np.testing.assert_array_equal(sums_of(layer, x[part], rows[part]), together[part])


@pytest.mark.gpu
def test_rows_whose_products_are_beyond_binary16(gpu, rng):
    """Gates and what they gate are up to 2^20, so that steps of a row have different factors."""
    layer = Layer(gpu, rng, SMALL, BANK_FORMATS[0])
    x, rows = random_sums(rng, SMALL, 8)
    layer.router = gpu.from_host(np.zeros((SMALL.experts + 1, SMALL.width), np.float32), DType.BF16)
    rows *= 2.0 ** rng.integers(0, 20, (8, 1))
    rows = round_to_bf16(rows)
    added = run(rows, layer.shared_gate_up, layer.shared_down) / 2
    for e in range(SMALL.per_token):  # all score 0
        gate_up, down = layer.gate_up[e % len(layer.gate_up)], layer.down[e % len(layer.down)]
        added += run(rows, gate_up, down) / SMALL.per_token
    found = sums_of(layer, 0 * x, rows.astype(np.float32))
    error = np.linalg.norm(found - added, axis=1) / np.linalg.norm(added, axis=1)
    assert (error < 4e-3).all(), error


@pytest.mark.gpu
def test_launches_of_different_sizes_and_replays_take_turns(gpu, rng):
    """What one launch leaves in the memory of the exchange is never taken for another one's."""
    layer = Layer(gpu, rng, LARGE, BANK_FORMATS[0])
    given = {T: tuple(random_sums(rng, LARGE, T)) for T in (1, 2, 5, 8)}
    expected = {T: sums_of(layer, x, rows) for T, (x, rows) in given.items()}
    graphs = {}
    for T, (x, rows) in given.items():
        start, out = (gpu.from_host(x, DType.BF16) for _ in range(2))
        fixed = gpu.from_host(rows, DType.BF16)

        def work(start=start, out=out, fixed=fixed):
            add_rms_norm(out, start, layer.next_norm, eps=EPS)
            add_product_rms_norm(out, layer.product(fixed), layer.next_norm, eps=EPS)

        graphs[T] = gpu.capture(work), out, (start, fixed)  # what the graph reads has to stay
    for _ in range(40):
        T = int(rng.choice(list(given)))
        graph, out, _ = graphs[T]
        gpu.clear(out)
        graph.replay()
        np.testing.assert_array_equal(gpu.to_host(out), expected[T])
        T = int(rng.choice(list(given)))
        np.testing.assert_array_equal(sums_of(layer, *given[T]), expected[T])
    for graph, *_ in graphs.values():
        graph.close()


@pytest.mark.gpu
def test_numbers_of_launches_begin_again(gpu, rng):
    """The last launch before clears what older ones have left under the same numbers."""
    layer = Layer(gpu, rng, SMALL, BANK_FORMATS[0])
    given = {T: tuple(random_sums(rng, SMALL, T)) for T in (1, 8)}
    others = tuple(random_sums(rng, SMALL, 8))
    expected = {T: sums_of(layer, x, rows) for T, (x, rows) in given.items()}
    sums_of(layer, *others)
    exchange = exchange_of(gpu)
    with gpu.on_stream():
        numbers = exchange.memory.array.view(np.uint32)
        numbers[0] = 0
    for _ in range(3):
        sums_of(layer, *others)
    with gpu.on_stream():
        assert numbers[:2].tolist() == [3, 0]
        numbers[0] = 2**24 - 3
    for after, T in ((2**24 - 2, 1), (0, 1), (1, 8), (2, 8), (3, 1)):
        np.testing.assert_array_equal(sums_of(layer, *given[T]), expected[T])
        with gpu.on_stream():
            assert numbers[:2].tolist() == [after, 0]
            tags = numbers[32:].get().reshape(-1, 2)[:, 1] >> 8
        assert after > 3 or tags.max() <= after


@pytest.mark.gpu
@pytest.mark.parametrize("row", [0, 17, 39, 40])
def test_a_score_that_is_not_a_number_is_not_lost(gpu, rng, row):
    """Even where the expert is not chosen; the last row is that of the shared one."""
    layer = Layer(gpu, rng, SMALL, BANK_FORMATS[0])
    x, rows = random_sums(rng, SMALL, 3)
    assert np.isfinite(sums_of(layer, x, rows)).all()
    router = gpu.to_host(layer.router).copy()
    router[row] = np.nan
    layer.router = gpu.from_host(router, DType.BF16)
    assert np.isnan(sums_of(layer, x, rows)).all()


def test_wrong_arguments_are_refused(device, rng):
    layer = Layer(device, rng, OTHERS[0], BANK_FORMATS[0])
    x, rows = layer.rows(rng, 2)
    product = layer.product(rows)
    too_many = replace(product, experts_per_token=4)
    with pytest.raises(OpArgumentError, match=r"expected 1\.\.3"):
        add_product_rms_norm(x, too_many, layer.next_norm, eps=EPS)
    with pytest.raises(OpArgumentError, match="'y'"):
        add_product_rms_norm(x[:1], product, layer.next_norm, eps=EPS)
    wrong = replace(product, weights=replace(layer.weights, down=layer.weights.gate_up))
    with pytest.raises(OpArgumentError, match="'gate_up'"):
        add_product_rms_norm(x, wrong, layer.next_norm, eps=EPS)
