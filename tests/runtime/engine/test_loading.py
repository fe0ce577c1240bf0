"""What is refused while an engine is loaded, and when."""

from __future__ import annotations

import pytest

from ninfer_format import Artifact
from ninfer_format.errors import ArtifactError, ExitCode
from ninfer_runtime.device.base import Memory
from ninfer_runtime.device.cpu import CpuDevice
from ninfer_runtime.engine.loading import load
from ninfer_runtime.engine.options import EngineOptions
from ninfer_runtime.errors import CapacityError, ContextError
from ninfer_runtime.text.tokenizer import Tokenizer


@pytest.fixture
def no_weights(monkeypatch):
    """Reading a parameter fails."""
    monkeypatch.setattr(Artifact, "decode_parameter", None)


def test_too_long_a_context_is_refused_before_weights_are_read(bf16_model, no_weights):
    with pytest.raises(ContextError) as caught:
        load(EngineOptions(bf16_model, max_context=40_000))
    assert (caught.value.found, caught.value.largest) == (40_000, 32_768)
    assert (caught.value.code, caught.value.exit_code) == ("context_domain", ExitCode.USAGE)


def test_a_tokenizer_beyond_the_model_is_refused_before_weights_are_read(
    bf16_model, no_weights, monkeypatch
):
    monkeypatch.setattr(Tokenizer, "public_tokens", 4097)
    with pytest.raises(ArtifactError, match="tokenizer") as caught:
        load(EngineOptions(bf16_model))
    assert (caught.value.expected, caught.value.found) == ("at most vocab_size 4096", 4097)
    assert caught.value.exit_code == ExitCode.INVALID_INPUT


def test_a_context_that_does_not_fit_beside_the_weights_is_refused(bf16_model, monkeypatch):
    needed = load(EngineOptions(bf16_model)).program._model.state_bytes(30_000)
    free = iter([2**40, needed, 2**40, needed - 1])
    monkeypatch.setattr(CpuDevice, "memory", lambda self: Memory(next(free), 2**40))
    options = EngineOptions(bf16_model, max_context=30_000)
    load(options)
    with pytest.raises(CapacityError, match="after the weights") as caught:
        load(options)
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (needed, needed - 1)
    assert caught.value.exit_code == ExitCode.CAPACITY
