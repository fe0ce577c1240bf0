import pickle
from pathlib import Path

import pytest

from ninfer_format.errors import ExitCode
from ninfer_runtime.engine.options import EngineOptions
from ninfer_runtime.errors import StartupError

MODEL = Path("model.ninfer")


@pytest.mark.parametrize("chunk", [0, -128, 1, 127, 129, 1000])
def test_prefill_chunk_must_be_a_positive_multiple_of_128(chunk):
    with pytest.raises(StartupError, match="positive multiple of 128") as caught:
        EngineOptions(MODEL, prefill_chunk=chunk)
    assert caught.value.code == "chunk_alignment"
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("chunk", [128, 1024, 4096])
def test_multiples_of_128_are_accepted(chunk):
    assert EngineOptions(MODEL, prefill_chunk=chunk).prefill_chunk == chunk


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"backend": "tpu"}, "backend"),
        ({"device": -1}, "device_domain"),
        ({"max_context": 0}, "context_domain"),
        ({"max_context": -5}, "context_domain"),
        ({"max_pending_requests": 0}, "pending_domain"),
        ({"pending_timeout_s": 0.0}, "pending_domain"),
        ({"pending_timeout_s": float("nan")}, "pending_domain"),
        ({"pending_timeout_s": float("inf")}, "pending_domain"),
    ],
)
def test_values_outside_their_domain_are_refused(options, code):
    with pytest.raises(StartupError) as caught:
        EngineOptions(MODEL, **options)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("given", "default", "limit", "expected"),
    [
        (None, 2048, 32768, 2048),
        (None, 2048, 500, 500),
        (None, 8192, 4096, 4096),
        (300, 2048, 500, 300),
        (500, 2048, 500, 500),
    ],
)
def test_only_a_default_context_is_lowered_to_the_model(given, default, limit, expected):
    options = EngineOptions(MODEL, max_context=given, default_max_context=default)
    assert options.resolve_max_context(limit) == expected


def test_a_given_context_above_the_model_is_refused_with_both_numbers():
    with pytest.raises(StartupError, match=r"max_context 501 is outside 1\.\.500") as caught:
        EngineOptions(MODEL, max_context=501).resolve_max_context(500)
    assert caught.value.code == "context_domain"


def test_options_survive_pickling():
    options = EngineOptions(MODEL, max_context=77, chat_template=Path("t.jinja"))
    assert pickle.loads(pickle.dumps(options)) == options
