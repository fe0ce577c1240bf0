from __future__ import annotations

import itertools
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from ninfer_runtime.device import DType
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.gated_delta_net import (
    DeltaInputs,
    DeltaSlots,
    DeltaSteps,
    DeltaWeights,
    gated_delta_net,
    recurrence,
)
from ninfer_runtime.ops.gated_delta_net.cases import TEST_CASES, DeltaCase
from ninfer_runtime.ops.linear import linear
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS, to_records
from ninfer_runtime.ops.product_input import ProductInput

ON_CUDA = True
EPS = 1e-6
HEAD = 128
TOLERANCE = 2e-5


def bf16(values):
    return np.asarray(values).astype(ml_dtypes.bfloat16).astype(np.float64)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def oracle(tokens, z, weights, state, begin, key_heads):
    """Rows and states [T] of all tokens after `begin`, in float64, one token and head at a time.

    `tokens` [T + 3, CH + 2 VH] starts with the three tokens before; `state` [VH, 128, 128].
    """
    convolution, a_log, dt_bias, norm = weights
    CH, VH = convolution.shape[1], a_log.shape[0]
    rows, states = [], [state.copy()]
    for t in range(3, len(tokens)):
        mixed = sum(convolution[j] * tokens[t - 3 + j, :CH] for j in range(4))
        mixed = bf16(mixed * sigmoid(mixed)).reshape(-1, HEAD)
        a, b = tokens[t, CH : CH + VH], tokens[t, CH + VH :]
        g = -np.exp(a_log) * np.logaddexp(0, a + dt_bias)
        row = np.empty((VH, HEAD))
        state = state.copy()
        for h in range(VH):
            q = mixed[h // (VH // key_heads)]
            k = mixed[key_heads + h // (VH // key_heads)]
            q, k = (v / np.sqrt(v @ v + 1e-6) for v in (q, k))
            decayed = np.exp(g[h]) * state[h]
            error = sigmoid(b[h]) * (mixed[2 * key_heads + h] - decayed @ k)
            state[h] = decayed + np.outer(error, k)
            y = state[h] @ q / np.sqrt(HEAD)
            row[h] = y / np.sqrt((y * y).mean() + EPS) * norm
        rows.append(row)
        states.append(state)
    gates = z.reshape(len(z), VH, HEAD)
    new = np.array(rows[len(rows) - len(z) :]).reshape(gates.shape)
    return new * gates * sigmoid(gates), states


class Setting:
    """Random inputs of a case: host arrays in float64 of bf16 values."""

    def __init__(self, rng, case: DeltaCase):
        B, C = len(case.position), case.columns
        self.case = case
        VH, CH = case.value_heads, (2 * case.key_heads + case.value_heads) * HEAD
        self.u = bf16(rng.standard_normal((B, C, CH)))
        self.z = bf16(rng.standard_normal((B, C, VH * HEAD)))
        self.a, self.b = (bf16(rng.standard_normal((B, C, VH))) for _ in range(2))
        self.convolution = bf16(rng.standard_normal((4, CH)))
        self.a_log = np.log(rng.uniform(0.05, 2, VH)).astype(np.float32)
        self.dt_bias = rng.standard_normal(VH).astype(np.float32)
        self.norm = bf16(rng.standard_normal(HEAD))
        slots = 2 * B + 1
        self.state = rng.standard_normal((slots, VH, HEAD, HEAD)).astype(np.float32)
        self.records = bf16(rng.standard_normal((slots, case.ring, CH + 2 * VH)))
        order = rng.permutation(slots).astype(np.int32)
        self.source = order[:B]
        self.destination = np.where(case.moves, order[B : 2 * B], self.source).astype(np.int32)

    def call(self, tensor, device, out=None, strided=False):
        """Run the op; returns the result [B, C, VH·128] and the slots after it."""
        found, slots = self.call_for_rows(tensor, device, out, strided)
        return found.reshape(*self.z.shape), slots

    def call_for_rows(self, tensor, device, out=None, strided=False):
        """Run the op; returns its result, whose rows are those of all sequences."""
        inputs = [tensor(x, DType.BF16) for x in (self.u, self.z, self.a, self.b)]
        if strided:
            inputs = cut_out_of_one(tensor, (self.u, self.z, self.a, self.b))
        weights = DeltaWeights(
            tensor(self.convolution, DType.BF16),
            tensor(self.a_log),
            tensor(self.dt_bias),
            tensor(self.norm, DType.BF16),
        )
        # A copy, because a CPU tensor shares the memory of a float32 array.
        slots = DeltaSlots(tensor(self.state.copy()), tensor(self.records, DType.BF16))
        case = self.case
        host = (
            self.source,
            self.destination,
            case.position,
            case.replayed,
            case.valid,
            case.committed,
        )
        steps = DeltaSteps(*(device.from_host(np.array(each, np.int32)) for each in host))
        found = gated_delta_net(DeltaInputs(*inputs), weights, slots, steps, eps=EPS, out=out)
        return found, slots

    def expected(self, b):
        """Rows and states of sequence b, and the tokens after its position with their history."""
        case = self.case
        begin, replayed, valid = case.position[b], case.replayed[b], case.valid[b]
        past = np.arange(begin - 3, begin + replayed)
        old = self.records[self.source[b]][past % case.ring] * (past >= 0)[:, None]
        new = np.concatenate([x[b, :valid] for x in (self.u, self.a, self.b)], axis=-1)
        tokens = np.concatenate((old, new))
        state = self.state[self.source[b]].astype(np.float64) * (begin > 0)
        weights = (self.convolution, self.a_log, self.dt_bias, self.norm)
        rows, states = oracle(tokens, self.z[b, :valid], weights, state, begin, case.key_heads)
        return rows, states, tokens


def cut_out_of_one(tensor, arrays):
    used = sum(each.shape[-1] for each in arrays)
    foreign = np.full((*arrays[0].shape[:2], 8 + -used % 8), np.nan)
    whole = tensor(
        np.concatenate([foreign[..., :8], *arrays, foreign[..., 8:]], axis=-1), DType.BF16
    )
    ends = 8 + np.cumsum([each.shape[-1] for each in arrays])
    return [whole[..., end - each.shape[-1] : end] for each, end in zip(arrays, ends, strict=True)]


def assert_rows_match(found, expected):
    """Half a unit of bf16 and a little more, but for tokens whose inputs were rounded otherwise.

    An input that the convolution rounds to the other bf16 neighbour shows in its token.
    """
    scale = np.sqrt((expected**2).sum() / max(expected.size, 1))
    error = np.abs(found - expected)
    assert (error <= 2**-7 * np.abs(expected) + 0.03 * scale).all(), error.max()
    assert (error > 2**-8 * np.abs(expected) + 1e-3 * scale).sum() <= 0.01 * error.size


def assert_states_match(found, expected):
    """Chunks round operands to f16, 2^-12 of each at most; a few such errors add up in squares."""
    error = np.sqrt(((found - expected) ** 2).mean())
    assert error <= 2e-3 * np.sqrt((expected**2).mean())


@pytest.mark.parametrize("case", TEST_CASES, ids=str)
@pytest.mark.parametrize("strided", [False, True])
def test_matches_the_recurrence(device, tensor, poisoned, values_of, rng, case, strided):
    setting = Setting(rng, case)
    B, C, width = setting.z.shape
    out = poisoned((B * C, width), DType.BF16)
    found, slots = setting.call_for_rows(tensor, device, out, strided)
    assert found is out
    rows, state, records = values_of(out), values_of(slots.state), values_of(slots.records)
    rows = rows.reshape(setting.z.shape)
    touched = set()
    for b, valid in enumerate(case.valid):
        expected, states, tokens = setting.expected(b)
        assert_rows_match(rows[b, :valid], expected.reshape(valid, setting.z.shape[-1]))
        assert not rows[b, valid:].any()
        to, stored = setting.destination[b], case.replayed[b] + case.committed[b]
        assert_states_match(state[to], states[stored])
        kept = min(valid, case.ring - 3)
        positions = case.position[b] - 3 + np.arange(len(tokens))
        begin = 0 if case.moves[b] else len(tokens) - valid
        for index in [*range(begin, len(tokens) - valid), *range(len(tokens) - kept, len(tokens))]:
            if positions[index] >= 0 and positions[index] > positions[-1] - case.ring:
                np.testing.assert_array_equal(
                    records[to, positions[index] % case.ring], tokens[index]
                )
        touched.add(int(to))
    for slot in set(range(len(state))) - touched:
        np.testing.assert_array_equal(state[slot], setting.state[slot])
        np.testing.assert_array_equal(records[slot], setting.records[slot])


def unit_weight(device, name, K):
    """A weight [K, K] with which a product gives back its rows."""
    words = np.eye(K, dtype=np.int32) * (0x3F80 if name == "bf16" else 1)
    scales = None if name == "bf16" else np.full((K, K // 64), 0x3C00, np.uint16)
    records = to_records(RECORD_FORMATS[name], words, scales)
    return PackedWeight(name, (K, K), device.upload(records), None, device)


@pytest.mark.gpu
@pytest.mark.parametrize("C", [1, 2, 5])
def test_products_read_what_a_gpu_packed(gpu, rng, C):
    def tensor(values, dtype=DType.FP32):
        return gpu.from_host(np.asarray(values, np.float32), dtype)

    valid, none = (C, C - 1, C), (0, 0, 0)
    case = DeltaCase(1, 2, C, 16, (3, 9, 0), none, valid, valid, (False,) * 3)
    rows, _ = Setting(rng, case).call_for_rows(tensor, gpu)
    assert isinstance(rows, ProductInput)
    is_packed = gpu.target.has_wgmma or 3 * C <= 8
    assert (rows.f16 is not None) == (rows.bf16 is not None) == is_packed
    expected = gpu.to_host(rows)
    for name, rounding in (("q4_g64_fp16", 2.0**-19), ("bf16", 0)):
        found = gpu.to_host(linear(rows, unit_weight(gpu, name, 2 * HEAD)))
        np.testing.assert_allclose(found, expected, rtol=0, atol=rounding)


@pytest.mark.gpu
@pytest.mark.parametrize(("B", "VH"), [(1, 8), (9, 48)])
def test_slots_that_are_settled_may_be_read_early(gpu, rng, B, VH):
    """Many steps in one graph, each after the product that makes its inputs."""

    def tensor(values, dtype=DType.FP32):
        return gpu.from_host(np.asarray(values, np.float32), dtype)

    KH, steps = 2, 24
    CH = (2 * KH + VH) * HEAD
    widths = np.cumsum([0, CH, VH * HEAD, VH, VH])
    x = [tensor(rng.standard_normal((B, 64)), DType.BF16) for _ in range(steps)]
    words = rng.integers(0, 3, (widths[-1], 64)).astype(np.int32)
    scales = np.full((widths[-1], 1), 0x3000, np.uint16)  # 1/8
    records = to_records(RECORD_FORMATS["q4_g64_fp16"], words, scales)
    weight = PackedWeight("q4_g64_fp16", words.shape, gpu.upload(records), None, gpu)
    weights = DeltaWeights(
        tensor(rng.standard_normal((4, CH)), DType.BF16),
        tensor(rng.standard_normal(VH)),
        tensor(rng.standard_normal(VH)),
        tensor(rng.standard_normal(HEAD), DType.BF16),
    )
    lanes, ones = np.arange(B, dtype=np.int32), np.ones(B, np.int32)
    each, columns = gpu.from_host(lanes), gpu.from_host(ones)
    step = [
        DeltaSteps(each, each, gpu.from_host(ones * i), gpu.from_host(ones * 0), columns, columns)
        for i in range(steps)
    ]
    rows = ProductInput.empty(gpu, (B, VH * HEAD), DType.BF16)
    found = []
    for settled in (False, True):
        slots = DeltaSlots(
            gpu.zeros((B, VH, HEAD, HEAD), DType.FP32), gpu.zeros((B, 16, CH + 2 * VH), DType.BF16)
        )

        def work(slots=slots, settled=settled):
            for i in range(steps):
                y = linear(x[i], weight).reshape(B, 1, widths[-1])
                inputs = DeltaInputs(*(y[..., a:b] for a, b in itertools.pairwise(widths)))
                gated_delta_net(inputs, weights, slots, step[i], eps=EPS, settled=settled, out=rows)

        graph = gpu.capture(work)
        graph.replay()
        gpu.synchronize()
        found.append([gpu.to_host(each) for each in (rows, slots.state, slots.records)])
        graph.close()
    for early, late in zip(*found, strict=True):
        np.testing.assert_array_equal(early, late)


def test_a_replay_gives_the_rows_of_a_commit(device, tensor, values_of, rng):
    """Six tokens at once, and two that are committed, two that are replayed, two more."""
    whole = DeltaCase(1, 2, 6, 16, (7,), (0,), (6,), (6,), (False,))
    setting = Setting(rng, whole)
    expected, slots = setting.call(tensor, device)
    state = values_of(slots.state)
    rows = []
    for begin, count, position, replayed, committed in (
        (0, 2, 7, 0, 2),
        (2, 3, 9, 0, 0),
        (4, 2, 9, 2, 2),
    ):
        part = Setting(
            rng,
            DeltaCase(1, 2, count, 16, (position,), (replayed,), (count,), (committed,), (False,)),
        )
        for name in ("convolution", "a_log", "dt_bias", "norm", "state", "records", "source"):
            setattr(part, name, getattr(setting, name))
        part.destination = setting.source
        for name in ("u", "z", "a", "b"):
            setattr(part, name, getattr(setting, name)[:, begin : begin + count])
        found, after = part.call(tensor, device)
        setting.state = values_of(after.state).astype(np.float32)
        setting.records = values_of(after.records)
        rows.append(values_of(found)[:, : min(count, 2)])
    together = np.concatenate(rows, axis=1)
    if device.kind == "cuda":
        np.testing.assert_array_equal(together, values_of(expected))
        np.testing.assert_array_equal(setting.state[setting.source[0]], state[setting.source[0]])
    np.testing.assert_allclose(together, values_of(expected), rtol=2**-7, atol=1e-2)
    np.testing.assert_allclose(
        setting.state[setting.source[0]], state[setting.source[0]], rtol=1e-4, atol=1e-4
    )


FEW_COLUMNS = DeltaCase(1, 2, 2, 16, (40, 0, 8), (1, 0, 2), (2, 1, 2), (0, 1, 2), (False,) * 3)
MANY_COLUMNS = DeltaCase(1, 2, 80, 16, (9, 0, 8), (1, 0, 2), (80, 5, 64), (7, 5, 64), (False,) * 3)
MANY_SEQUENCES = DeltaCase(
    4,
    40,
    2,
    16,
    (3, 0, 9, 40, 5, 7, 2),
    (1, 0, 2, 0, 0, 9, 4),
    (2, 1, 1, 2, 2, 1, 2),
    (0, 1, 0, 2, 1, 0, 2),
    (False,) * 7,
)


@pytest.mark.parametrize("case", [FEW_COLUMNS, MANY_COLUMNS, MANY_SEQUENCES], ids=str)
def test_other_sequences_do_not_show(device, tensor, values_of, rng, case):
    setting = Setting(rng, case)
    together, slots = setting.call(tensor, device)
    for b in range(len(case.valid)):
        per_sequence = ("position", "replayed", "valid", "committed", "moves")
        own_steps = {name: getattr(case, name)[b : b + 1] for name in per_sequence}
        valid = case.valid[b]
        alone = Setting(rng, replace(case, columns=valid, **own_steps))
        for name in ("convolution", "a_log", "dt_bias", "norm", "state", "records"):
            setattr(alone, name, getattr(setting, name))
        for name in ("source", "destination"):
            setattr(alone, name, getattr(setting, name)[b : b + 1])
        for name in ("u", "z", "a", "b"):
            setattr(alone, name, getattr(setting, name)[b : b + 1, :valid])
        found, own = alone.call(tensor, device)
        np.testing.assert_array_equal(values_of(found)[0], values_of(together)[b, :valid])
        slot = setting.destination[b]
        np.testing.assert_array_equal(values_of(own.state)[slot], values_of(slots.state)[slot])


@pytest.mark.gpu
@pytest.mark.parametrize("case", [case for case in TEST_CASES if case.columns < 64], ids=str)
def test_strips_of_a_head_do_not_show(gpu, rng, case, monkeypatch):
    """However many blocks share a head, it has the same bits; without clusters, one does each time."""

    def tensor(values, dtype=DType.FP32):
        return gpu.from_host(np.asarray(values, np.float32), dtype)

    setting = Setting(rng, case)
    found = []
    for strips in (1, 2, 4) if gpu.target.has_clusters else (1, 1):
        monkeypatch.setattr(recurrence, "choose_strips", lambda target, tasks, own=strips: own)
        rows, slots = setting.call(tensor, gpu)
        found.append([gpu.to_host(each) for each in (rows, slots.state, slots.records)])
    for first, *others in zip(*found, strict=True):
        for other in others:
            np.testing.assert_array_equal(first, other)


EXTREMES = {
    "strong decays": lambda s: setattr(s, "a", np.where(s.a > 0, 60.0, -60.0)),
    "decays beyond float": lambda s: (s.a.fill(1e30), s.a_log.fill(9)),
    "no decay": lambda s: s.a.fill(-60),
    "no steps": lambda s: (s.a.fill(-60), s.b.fill(-60)),
    "whole steps": lambda s: s.b.fill(60),
    "repeated keys": lambda s: (s.u[:, :, :256].fill(2), s.a.fill(-60), s.b.fill(60)),
    "large values": lambda s: scale_values(s, 2.0**40),
    "small values": lambda s: scale_values(s, 2.0**-30),
    "values that grow": lambda s: scale_values(s, np.exp2(np.arange(200.0) // 8)[:, None]),
    "values that shrink": lambda s: (
        scale_values(s, np.exp2(-np.arange(200.0) // 8)[:, None]),
        s.a.fill(20),
    ),
}


def scale_values(setting, factor):
    setting.u[:, :, 256:] = bf16(np.abs(setting.u[:, :, 256:]) * factor)
    setting.convolution[:, 256:] = np.abs(setting.convolution[:, 256:])
    setting.state *= np.float32(np.max(factor) if np.ndim(factor) == 0 else factor.flat[0])
    setting.records[..., 256:512] = 0


@pytest.mark.parametrize("extreme", EXTREMES)
def test_extreme_inputs_match_the_recurrence(device, tensor, values_of, rng, extreme):
    case = DeltaCase(1, 2, 200, 16, (9,), (0,), (200,), (200,), (False,))
    setting = Setting(rng, case)
    EXTREMES[extreme](setting)
    found, slots = setting.call(tensor, device)
    rows, states, _ = setting.expected(0)
    for token in range(0, 200, 20):
        assert_rows_match(
            values_of(found)[0, token : token + 20], rows[token : token + 20].reshape(20, -1)
        )
    assert_states_match(values_of(slots.state)[setting.source[0]], states[-1])


@pytest.mark.parametrize("first", [64, 100, 150])
def test_a_cut_shows_in_rounding_only(device, tensor, values_of, rng, first):
    """A call of 200 tokens, or two calls."""
    setting = Setting(rng, DeltaCase(1, 2, 200, 16, (7,), (0,), (200,), (200,), (False,)))
    expected, whole = setting.call(tensor, device)
    rows = []
    for begin, end in ((0, first), (first, 200)):
        count = end - begin
        part = Setting(
            rng, DeltaCase(1, 2, count, 16, (7 + begin,), (0,), (count,), (count,), (False,))
        )
        for name in ("convolution", "a_log", "dt_bias", "norm", "state", "records", "source"):
            setattr(part, name, getattr(setting, name))
        part.destination = setting.source
        for name in ("u", "z", "a", "b"):
            setattr(part, name, getattr(setting, name)[:, begin:end])
        found, slots = part.call(tensor, device)
        setting.state = values_of(slots.state).astype(np.float32)
        setting.records = values_of(slots.records)
        rows.append(values_of(found))
    assert_rows_match(np.concatenate(rows, axis=1), values_of(expected))
    slot = setting.source[0]
    assert_states_match(setting.state[slot], values_of(whole.state)[slot])


def test_wrong_arguments_are_refused(device, tensor, rng):
    setting = Setting(rng, DeltaCase(2, 4, 1, 4, (3,), (0,), (1,), (1,), (False,)))
    for name, value, message in (
        ("u", setting.u[..., :-64], "'u'"),
        ("a", setting.a[..., :3], "'u'|'a'"),
        ("z", setting.z[..., :7], "'z'"),
        ("records", setting.records[:, :3], "'records'"),
        ("norm", setting.norm[:5], "'norm'"),
        ("source", np.zeros(2, np.int32), "'steps'"),
    ):
        kept = getattr(setting, name)
        setattr(setting, name, value)
        with pytest.raises(OpArgumentError, match=message):
            setting.call(tensor, device)
        setattr(setting, name, kept)
