from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.runtime.packed_weights import pack_weight

from ninfer_format import codec_for
from ninfer_format.encoders.grouped_absmax import grouped_absmax
from ninfer_runtime.device import DType
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.moe_experts import ExpertWeights, moe_experts
from ninfer_runtime.ops.moe_experts.cases import TEST_CASES, ExpertsCase
from ninfer_runtime.ops.moe_router import Routing

BASIC = ExpertsCase(6, 32, 4, 2, 16, 24)


def matrices(case: ExpertsCase, rng: np.random.Generator) -> dict[str, np.ndarray]:
    D, E = case.width, case.experts
    shapes = {
        "gate_up": (E * 2 * case.inner, D),
        "down": (E * D, case.inner),
        "shared_gate_up": (2 * case.shared, D),
        "shared_down": (D, case.shared),
    }
    return {name: rng.standard_normal(shape) / np.sqrt(shape[1]) for name, shape in shapes.items()}


@pytest.fixture
def routing(device, tensor, rng):
    """Different experts for each token in any order, with weights that add up to one."""

    def make(case: ExpertsCase) -> Routing:
        T, A = case.tokens, case.experts_per_token
        chosen = [rng.permutation(case.experts)[:A] for _ in range(T)]
        weights = rng.random((T, A)) + 0.1
        return Routing(
            device.from_host(np.array(chosen, np.int32)),
            tensor(weights / weights.sum(axis=1, keepdims=True)),
            tensor(rng.random(T)),
        )

    return make


def oracle(x, routing: Routing, weights: dict[str, np.ndarray], values_of) -> np.ndarray:
    """Token by token and expert by expert."""
    D = x.shape[1]
    inner = weights["down"].shape[1]
    experts = values_of(routing.experts).astype(int)
    counts, shared_counts = values_of(routing.weights), values_of(routing.shared_weights)

    def run(row, gate_up, down):
        gate, up = np.split(gate_up @ row, 2)
        return down @ (gate / (1 + np.exp(-gate)) * up)

    rows = []
    for t, row in enumerate(x):
        shared = run(row, weights["shared_gate_up"], weights["shared_down"])
        total = shared_counts[t] * shared
        for place, expert in enumerate(experts[t]):
            gate_up = weights["gate_up"][expert * 2 * inner : (expert + 1) * 2 * inner]
            down = weights["down"][expert * D : (expert + 1) * D]
            total = total + counts[t, place] * run(row, gate_up, down)
        rows.append(total)
    return np.array(rows)


@pytest.mark.parametrize("case", TEST_CASES)
@pytest.mark.parametrize("strided", [False, True])
def test_matches_the_formula(
    tensor, poisoned, values_of, assert_rounded_once, routing, rng, dtype, case, strided
):
    x = tensor(rng.standard_normal((case.tokens, case.width)), dtype, strided=strided)
    weights = {name: tensor(values, dtype) for name, values in matrices(case, rng).items()}
    chosen = routing(case)
    out = poisoned((case.tokens, case.width), dtype)
    assert moe_experts(x, chosen, ExpertWeights(**weights), out=out) is out
    decoded = {name: values_of(weight) for name, weight in weights.items()}
    assert_rounded_once(out, oracle(values_of(x), chosen, decoded, values_of))


def test_packed_banks_are_multiplied_as_stored(
    tensor, values_of, assert_rounded_once, routing, rng, device
):
    case = ExpertsCase(7, 128, 4, 2, 64, 64)
    decoded, packed = {}, {}
    for name, values in matrices(case, rng).items():
        codec = codec_for("q4_g64_fp16", "row_split_k128_v1", values.shape)
        payload = codec.encode(grouped_absmax(values.astype(np.float32), "q4_g64_fp16"))
        decoded[name] = codec.decode(payload).astype(np.float64).reshape(values.shape)
        packed[name] = pack_weight(codec, payload, device)
    x = tensor(rng.standard_normal((7, 128)))
    chosen = routing(case)
    found = moe_experts(x, chosen, ExpertWeights(**packed))
    assert_rounded_once(found, oracle(values_of(x), chosen, decoded, values_of))


def test_only_chosen_experts_count(tensor, routing, rng, device):
    weights = matrices(BASIC, rng)
    x = tensor(rng.standard_normal((6, 32)))
    experts = device.from_host(np.array([[2, 0]] * 6, np.int32))
    chosen = replace(routing(BASIC), experts=experts)
    found = [
        device.to_host(moe_experts(x, chosen, ExpertWeights(**as_tensors(tensor, changed)))).copy()
        for changed in (weights, spoiled(weights, 1), spoiled(weights, 2))
    ]
    np.testing.assert_array_equal(found[0], found[1])
    assert np.isnan(found[2]).all()


def as_tensors(tensor, weights):
    return {name: tensor(values) for name, values in weights.items()}


def spoiled(weights: dict[str, np.ndarray], expert: int) -> dict[str, np.ndarray]:
    changed = {name: values.copy() for name, values in weights.items()}
    changed["down"][expert * 32] = np.nan
    changed["down"][expert * 32 : (expert + 1) * 32, 0] = np.nan
    return changed


def test_a_token_does_not_depend_on_the_others(tensor, routing, rng, device):
    weights = ExpertWeights(**as_tensors(tensor, matrices(BASIC, rng)))
    values = rng.standard_normal((6, 32))
    chosen = routing(BASIC)
    whole = device.to_host(moe_experts(tensor(values), chosen, weights))
    for t in range(6):
        row = Routing(*(each[t : t + 1] for each in chosen.tensors))
        alone = device.to_host(moe_experts(tensor(values[t : t + 1]), row, weights))
        np.testing.assert_allclose(alone[0], whole[t], rtol=0, atol=1e-6)


def test_wrong_arguments_are_refused(tensor, routing, rng, device):
    weights = ExpertWeights(**as_tensors(tensor, matrices(BASIC, rng)))
    x, chosen = tensor(np.ones((6, 32))), routing(BASIC)
    wrong_weights = {
        "gate_up": (4 * 2 * 16 + 2, 32),
        "down": (4 * 32 + 1, 16),
        "shared_gate_up": (47, 32),
        "shared_down": (31, 24),
    }
    for name, shape in wrong_weights.items():
        changed = replace(weights, **{name: tensor(np.ones(shape))})
        with pytest.raises(OpArgumentError, match=f"'{name}'"):
            moe_experts(x, chosen, changed)
    with pytest.raises(OpArgumentError, match="'experts'"):
        moe_experts(x[:5], chosen, weights)
    with pytest.raises(OpArgumentError, match="'weights'"):
        moe_experts(x, replace(chosen, weights=tensor(np.ones((6, 3)))), weights)
    integers = replace(weights, down=device.from_host(np.ones((128, 16), np.int32)))
    with pytest.raises(OpArgumentError, match="'down'"):
        moe_experts(x, chosen, integers)
    with pytest.raises(OpArgumentError, match="'out'"):
        moe_experts(x, chosen, weights, out=tensor(np.ones((6, 31))))


def test_routing_stays_in_float32_beside_bf16_rows(tensor, routing, rng):
    chosen = routing(BASIC)
    x = tensor(np.ones((6, 32)), DType.BF16)
    weights = ExpertWeights(**as_tensors(tensor, matrices(BASIC, rng)))
    assert moe_experts(x, chosen, weights).dtype is DType.BF16
    rounded = tensor(np.ones(chosen.weights.shape), DType.BF16)
    with pytest.raises(OpArgumentError, match="'weights'"):
        moe_experts(x, replace(chosen, weights=rounded), weights)
