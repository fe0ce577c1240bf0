"""The mixture of experts as a layer: how its ops fit together, and what observers are shown."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ninfer_runtime.device import Tensor, get_device
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.layers.moe import ExpertObservers, MixtureOfExperts
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.moe_experts import ExpertWeights

DEVICE = get_device("cpu")
D, E, A, INNER, SHARED = 12, 5, 2, 7, 9

Draw = Callable[..., Tensor]


class Recorder:
    """Keeps a copy of everything that it is shown."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def __call__(self, x: Tensor) -> None:
        self.seen.append(x.array.copy())


@pytest.fixture
def draw() -> Draw:
    rng = np.random.default_rng(7)
    return lambda *shape: DEVICE.from_host((rng.standard_normal(shape) / 3).astype(np.float32))


@pytest.fixture
def layer(draw: Draw) -> MixtureOfExperts:
    weights = ExpertWeights(
        gate_up=draw(E * 2 * INNER, D),
        down=draw(E * D, INNER),
        shared_gate_up=draw(2 * SHARED, D),
        shared_down=draw(D, SHARED),
    )
    return MixtureOfExperts(draw(E + 1, D), weights, A)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def product(gate_up: np.ndarray, row: np.ndarray) -> np.ndarray:
    gate, up = np.split(gate_up @ row, 2)
    return np.asarray(gate * sigmoid(gate) * up)


def values(weight: Tensor | PackedWeight) -> np.ndarray:
    assert isinstance(weight, Tensor)
    return np.asarray(weight.array, np.float64)


def test_matches_the_formula(layer: MixtureOfExperts, draw: Draw):
    x = draw(6, D)
    weights = layer.weights
    gate_up = values(weights.gate_up).reshape(E, 2 * INNER, D)
    down = values(weights.down).reshape(E, D, INNER)
    for row, found in zip(x.array.astype(np.float64), layer(x).compute().array, strict=True):
        scores = layer.router.array.astype(np.float64) @ row
        chosen = np.argsort(-scores[:E])[:A]
        counts = np.exp(scores[chosen]) / np.exp(scores[chosen]).sum()
        expected = sigmoid(scores[E]) * (
            values(weights.shared_down) @ product(values(weights.shared_gate_up), row)
        )
        for count, expert in zip(counts, chosen, strict=True):
            expected += count * down[expert] @ product(gate_up[expert], row)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_leaves_its_input(layer: MixtureOfExperts, draw: Draw):
    x = draw(3, D)
    kept = x.array.copy()
    layer(x).compute()
    np.testing.assert_array_equal(x.array, kept)


def test_observers_see_what_each_projection_gets(layer: MixtureOfExperts, draw: Draw):
    recorders = [Recorder() for _ in range(E + 2)]
    observed = MixtureOfExperts(
        layer.router,
        layer.weights,
        A,
        ExpertObservers(recorders[0], recorders[1 : E + 1], recorders[E + 1]),
    )
    x = draw(4, D)
    np.testing.assert_array_equal(observed(x).compute().array, layer(x).compute().array)
    (layer_input,) = recorders[0].seen
    np.testing.assert_array_equal(layer_input, x.array)
    rows = x.array.astype(np.float64)
    chosen = np.argsort(-(rows @ layer.router.array[:E].T), axis=1)[:, :A]
    gate_up = values(layer.weights.gate_up).reshape(E, 2 * INNER, D)
    for expert in range(E):
        expected = [product(gate_up[expert], rows[t]) for t in range(4) if expert in chosen[t]]
        seen = recorders[1 + expert].seen
        assert len(seen) == bool(expected)
        if expected:
            np.testing.assert_allclose(seen[0], expected, atol=1e-5)
    assert sum(len(recorder.seen) == 0 for recorder in recorders[1 : E + 1]) < E
    (shared,) = recorders[E + 1].seen
    expected = [product(values(layer.weights.shared_gate_up), row) for row in rows]
    np.testing.assert_allclose(shared, expected, atol=1e-5)


def test_packed_weights_cannot_be_observed(layer: MixtureOfExperts, draw: Draw):
    packed = PackedWeight("bf16", (E * 2 * INNER, D), None, None, DEVICE)
    weights = ExpertWeights(
        packed, layer.weights.down, layer.weights.shared_gate_up, layer.weights.shared_down
    )
    recorder = Recorder()
    observers = ExpertObservers(recorder, [recorder] * E, recorder)
    observed = MixtureOfExperts(layer.router, weights, A, observers)
    with pytest.raises(OpArgumentError, match="to be observed"):
        observed(draw(2, D))
