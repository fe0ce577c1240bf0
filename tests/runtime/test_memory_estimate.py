"""The estimate against what the engine really allocates for the built-in model."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from tests.compile.dry_gpu import DryGpu
from tests.runtime.models.sequences import Sequence

from ninfer_format import Artifact, open_artifact
from ninfer_format.memory_estimate import MemoryEstimate, MemoryRequest
from ninfer_runtime import builtin_model
from ninfer_runtime.cuda.target import TYPICAL_TARGETS
from ninfer_runtime.device.registry import get_device
from ninfer_runtime.engine.engine import Engine
from ninfer_runtime.engine.options import EngineOptions
from ninfer_runtime.errors import ContextError, StartupError
from ninfer_runtime.kv.formats import kv_formats
from ninfer_runtime.memory_estimate import estimate_memory
from ninfer_runtime.models.architecture import LanguageModel
from ninfer_runtime.models.registry import load_model

CONTEXT = 700
"""No multiple of the tokens of a page."""


@pytest.fixture
def artifact():
    with open_artifact(builtin_model.path()) as artifact:
        yield artifact


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    with open_artifact(builtin_model.path()) as artifact:
        return load_model(artifact, get_device("cpu"))


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setenv("NINFER_BACKEND", "cpu")


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
@pytest.mark.parametrize("kv_dtype", [None, *kv_formats("cpu")])
def test_a_sequence_takes_what_was_estimated(
    slots: int, kv_dtype: str | None, artifact: Artifact, model: LanguageModel
):
    request = MemoryRequest(max_context=CONTEXT, slots=slots, kv_dtype=kv_dtype)
    estimate = estimate_memory(artifact, request)
    name = "fp32" if kv_dtype is None else kv_dtype
    state = Sequence(model, CONTEXT, kv_formats("cpu")[name]).state
    sequence = num_bytes(estimate, "cache") + num_bytes(estimate, "recurrent state")
    assert sequence == slots * state.num_bytes
    assert (estimate.max_context, estimate.slots, estimate.kv_dtype) == (CONTEXT, slots, name)
    assert any("one sequence at a time" in note for note in estimate.notes) == (slots > 1)


def test_the_context_is_that_of_the_engine(artifact: Artifact):
    options = EngineOptions(artifact.path, backend="cpu")
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
    with pytest.raises(StartupError, match=r"kv_dtype 'int4' is not one of fp32, bf16"):
        estimate_memory(artifact, MemoryRequest(kv_dtype="int4"))
    with pytest.raises(ContextError, match="40000"):
        estimate_memory(artifact, MemoryRequest(max_context=40_000))


@pytest.mark.parametrize("kv_dtype", [None, *kv_formats("cuda")])
def test_on_a_gpu_weights_stay_as_they_are_stored(artifact: Artifact, monkeypatch, kv_dtype):
    on_cpu = estimate_memory(artifact, MemoryRequest(kv_dtype="bf16"))
    gpu = DryGpu(TYPICAL_TARGETS["sm_89"])
    monkeypatch.setattr("ninfer_runtime.engine.loading.open_device", lambda backend, index: gpu)
    estimate = estimate_memory(artifact, MemoryRequest(kv_dtype=kv_dtype))
    assert (estimate.device, estimate.kv_dtype) == ("cuda", kv_dtype or "bf16")
    details = {item.purpose: item.detail for item in estimate.items if item.component == "text"}
    assert details["weights"] == "as stored"
    assert num_bytes(estimate, "weights") < num_bytes(on_cpu, "weights") / 3
    assert num_bytes(estimate, "workspace") > 2**29
    if kv_dtype in (None, "bf16"):
        assert num_bytes(estimate, "cache") == num_bytes(on_cpu, "cache")
    else:
        assert num_bytes(estimate, "cache") < num_bytes(on_cpu, "cache")


def test_a_gpu_has_not_the_exact_format(artifact: Artifact, monkeypatch):
    gpu = DryGpu(TYPICAL_TARGETS["sm_89"])
    monkeypatch.setattr("ninfer_runtime.engine.loading.open_device", lambda backend, index: gpu)
    with pytest.raises(StartupError, match=r"'fp32' is not one of bf16.* cuda devices"):
        estimate_memory(artifact, MemoryRequest(kv_dtype="fp32"))
