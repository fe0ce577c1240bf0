"""The estimate against what the engine really allocates for the built-in model."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from ninfer_format import Artifact, UnsupportedConfigError, open_artifact
from ninfer_format.memory_estimate import MemoryEstimate, MemoryRequest
from ninfer_runtime import builtin_model
from ninfer_runtime.device.registry import get_device
from ninfer_runtime.engine.engine import Engine
from ninfer_runtime.engine.options import EngineOptions
from ninfer_runtime.errors import ContextError
from ninfer_runtime.memory_estimate import estimate_memory
from ninfer_runtime.models.registry import load_model

CONTEXT = 700
"""More than twice the step by which caches grow, and not a multiple of it."""


@pytest.fixture
def artifact():
    with open_artifact(builtin_model.path()) as artifact:
        yield artifact


def num_bytes(estimate: MemoryEstimate, purpose: str) -> int:
    return sum(item.num_bytes or 0 for item in estimate.items if item.purpose == purpose)


def arrays(thing: Any, found: dict[int, np.ndarray], seen: set[int]) -> None:
    """Collect every array that belongs to a model, views of one array once."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, np.ndarray):
        while isinstance(thing.base, np.ndarray):
            thing = thing.base
        found[id(thing)] = thing
    elif isinstance(thing, list | tuple):
        for item in thing:
            arrays(item, found, seen)
    elif type(thing).__module__.startswith("ninfer_runtime"):
        names = getattr(thing, "__slots__", None) or vars(thing)
        for name in names:
            arrays(getattr(thing, name), found, seen)


def test_weights_are_those_that_are_loaded(artifact: Artifact):
    estimate = estimate_memory(artifact, MemoryRequest())
    tracemalloc.start()
    try:
        model = load_model(artifact, get_device("cpu"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    found: dict[int, np.ndarray] = {}
    arrays(model, found, set())
    assert sum(array.nbytes for array in found.values()) == num_bytes(estimate, "weights")
    assert num_bytes(estimate, "weights") == model.weight_bytes
    # A bound: the largest matrix need not be the last to be loaded. Names and records come on top.
    largest_matrix = 4096 * 256 * 4
    assert peak <= estimate.loading_bytes + (1 << 20)
    assert estimate.loading_bytes <= peak + largest_matrix


@pytest.mark.parametrize("slots", [1, 3])
def test_a_full_sequence_takes_what_was_estimated(slots: int, artifact: Artifact):
    estimate = estimate_memory(artifact, MemoryRequest(max_context=CONTEXT, slots=slots))
    model = load_model(artifact, get_device("cpu"))
    state = model.new_state(CONTEXT)
    model.forward(np.zeros(CONTEXT, np.int64), state)
    sequence = num_bytes(estimate, "cache") + num_bytes(estimate, "recurrent state")
    assert sequence == slots * state.num_bytes
    assert (estimate.max_context, estimate.slots, estimate.kv_dtype) == (CONTEXT, slots, "fp32")
    assert any("one sequence at a time" in note for note in estimate.notes) == (slots > 1)


def test_the_context_is_that_of_the_engine(artifact: Artifact):
    options = EngineOptions(artifact.path)
    with Engine(options) as engine:
        assert estimate_memory(artifact, MemoryRequest()).max_context == engine.max_context


def test_components_that_are_not_loaded_take_nothing(artifact: Artifact):
    estimate = estimate_memory(artifact, MemoryRequest())
    weights = {item.component: item for item in estimate.items if item.purpose == "weights"}
    assert set(weights) == {"text", "mtp", "vision"}
    for name in ("mtp", "vision"):
        assert weights[name].num_bytes == 0
        assert "not loaded" in weights[name].detail


def test_what_the_engine_cannot_do_is_refused(artifact: Artifact):
    with pytest.raises(UnsupportedConfigError, match="kv-dtype = 'int8'"):
        estimate_memory(artifact, MemoryRequest(kv_dtype="int8"))
    with pytest.raises(ContextError, match="40000"):
        estimate_memory(artifact, MemoryRequest(max_context=40_000))
