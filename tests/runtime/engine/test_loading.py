"""What is refused while an engine is loaded, and when."""

from __future__ import annotations

import pytest

from ninfer_format import Artifact, open_artifact
from ninfer_format.errors import ArtifactError, ExitCode
from ninfer_runtime.device import get_device
from ninfer_runtime.device.base import Memory
from ninfer_runtime.device.cpu import CpuDevice
from ninfer_runtime.engine.loading import load
from ninfer_runtime.engine.options import EngineOptions
from ninfer_runtime.errors import (
    CapacityError,
    ContextError,
    DeviceError,
    DeviceFailedError,
    StartupError,
)
from ninfer_runtime.kv.formats import kv_formats
from ninfer_runtime.models.registry import model_memory
from ninfer_runtime.sampling.params import GREEDY
from ninfer_runtime.text.tokenizer import Tokenizer


@pytest.fixture
def no_weights(monkeypatch):
    """Reading a parameter fails."""
    monkeypatch.setattr(Artifact, "decode_parameter", None)


def test_too_long_a_context_is_refused_before_weights_are_read(bf16_model, no_weights):
    with pytest.raises(ContextError) as caught:
        load(EngineOptions(bf16_model, backend="cpu", max_context=40_000))
    assert (caught.value.found, caught.value.largest) == (40_000, 32_768)
    assert (caught.value.code, caught.value.exit_code) == ("context_domain", ExitCode.USAGE)


def test_a_tokenizer_beyond_the_model_is_refused_before_weights_are_read(
    bf16_model, no_weights, monkeypatch
):
    monkeypatch.setattr(Tokenizer, "public_tokens", 4097)
    with pytest.raises(ArtifactError, match="tokenizer") as caught:
        load(EngineOptions(bf16_model, backend="cpu"))
    assert (caught.value.expected, caught.value.found) == ("at most vocab_size 4096", 4097)
    assert caught.value.exit_code == ExitCode.INVALID_INPUT


def test_a_context_that_does_not_fit_beside_the_weights_is_refused(
    bf16_model, monkeypatch, no_weights
):
    options = EngineOptions(bf16_model, max_context=30_000, backend="cpu")
    with open_artifact(bf16_model) as artifact:
        memory = model_memory(artifact, get_device("cpu"), 30_000, kv_formats("cpu")["fp32"])
    needed = memory.weight_bytes + memory.cache_bytes + memory.recurrent_bytes
    assert needed > memory.loading_bytes
    monkeypatch.setattr(CpuDevice, "memory", lambda self: Memory(needed - 1, 2**40))
    with pytest.raises(CapacityError, match=f"keys and values {memory.cache_bytes}") as caught:
        load(options)
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (needed, needed - 1)
    assert caught.value.exit_code == ExitCode.CAPACITY
    # What fits goes on to the weights.
    monkeypatch.setattr(CpuDevice, "memory", lambda self: Memory(needed, 2**40))
    with pytest.raises(TypeError):
        load(options)


def test_a_format_of_keys_that_the_device_has_not_is_refused(bf16_model, no_weights):
    with pytest.raises(StartupError, match=r"kv_dtype 'int4' is not one of fp32, bf16") as caught:
        load(EngineOptions(bf16_model, backend="cpu", kv_dtype="int4"))
    assert (caught.value.code, caught.value.exit_code) == ("kv_dtype", ExitCode.USAGE)


def test_there_is_one_cpu(bf16_model, no_weights):
    with pytest.raises(DeviceError, match="there is no cpu device 1"):
        load(EngineOptions(bf16_model, backend="cpu", device=1))


@pytest.mark.parametrize("error", [DeviceError("no driver"), DeviceFailedError("busy")])
def test_without_a_backend_a_gpu_is_taken_if_there_is_one(bf16_model, monkeypatch, error):
    def without_gpu(kind, index=0):
        if kind == "cuda":
            raise error
        return get_device(kind, index)

    monkeypatch.setattr("ninfer_runtime.device.registry.get_device", without_gpu)
    if isinstance(error, DeviceFailedError):
        # One that is there but refuses is no reason to be silent.
        with pytest.raises(DeviceFailedError):
            load(EngineOptions(bf16_model))
        return
    loaded = load(EngineOptions(bf16_model))
    assert (loaded.options.backend, loaded.options.kv_dtype) == ("cpu", "fp32")
    with pytest.raises(DeviceError, match="no driver"):
        load(EngineOptions(bf16_model, backend="cuda"))


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_keys_may_be_stored_as_on_a_gpu(bf16_model, kv_dtype):
    loaded = load(EngineOptions(bf16_model, backend="cpu", kv_dtype=kv_dtype))
    prompt = loaded.frontend.tokenizer.encode("The capital of France is")
    handle = loaded.program.begin(prompt, 100, GREEDY)
    assert loaded.program.advance_prefill(handle).token_id is not None
    exact = load(EngineOptions(bf16_model, backend="cpu")).program
    full = exact.begin(prompt, 100, GREEDY)
    assert 0 < loaded.program.memory().sequence_bytes < exact.memory().sequence_bytes
    exact.finish(full)
