"""Faults that users of other servers reported, at the level of the engine."""

import random
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ninfer_runtime.engine.request import FinishReason, OutputDelta
from ninfer_runtime.engine.stats import Availability
from ninfer_runtime.errors import RequestError, RequestErrorKind
from ninfer_runtime.text.frontend import Frontend

CHECKPOINT = Path(__file__).parents[2] / "data" / "tiny-model" / "checkpoint"
FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


@pytest.fixture(scope="module")
def frontend():
    return Frontend({name: (CHECKPOINT / name).read_bytes() for name in FILES})


def byte_tokens(tokenizer):
    """The token of every single byte."""
    return {
        tokenizer.token_bytes(token): token
        for token in range(tokenizer.public_tokens)
        if len(tokenizer.token_bytes(token)) == 1
    }


def test_report_d02_a_malformed_byte_sequence_ends_nothing(scene, frontend):
    tokens = byte_tokens(frontend.tokenizer)
    stop = frontend.stop_token_ids[0]
    script = [tokens[b"\xf0"], tokens[b"\x9f"], tokens[b"A"], stop]
    built = scene(script, vocab_size=4096, frontend=frontend)
    gate = built.hold("decode", 2)
    sink = built.sink()
    first = built.submit(sink=sink)
    second = built.submit()
    gate.wait_until_reached()
    gate.open()
    result = first.wait(built.wait_s)
    assert result.text == sink.text == "\ufffdA"
    assert result.finish_reason is FinishReason.STOP_TOKEN
    assert second.wait(built.wait_s).text == "\ufffdA"
    assert built.run().text == "\ufffdA"
    assert built.engine.availability() is Availability.READY


@pytest.mark.parametrize("tail", [b"\xf0", b"\xf0\x9f", b"\xe6\x97", b"\xff\xc3"])
def test_report_d02_an_output_may_end_inside_a_character(scene, frontend, tail):
    tokens = byte_tokens(frontend.tokenizer)
    script = [*(tokens[bytes([byte])] for byte in tail), frontend.stop_token_ids[0]]
    built = scene(script, vocab_size=4096, frontend=frontend)
    assert built.run().text == tail.decode("utf-8", "replace")


def test_report_d03_a_client_that_leaves_during_prefill_frees_the_engine(scene):
    built = scene(chunk=1, max_pending_requests=1)
    gate = built.hold("prefill", 2)
    leaving = built.submit((1,) * 20)
    waiting = built.submit((2,), deadline=time.monotonic() + 30)
    gate.wait_until_reached()
    leaving.cancel()
    gate.open()
    assert leaving.wait(built.wait_s).finish_reason is FinishReason.CANCELLED
    assert waiting.wait(built.wait_s).text == "abc"
    # One chunk of the second request, and no more than the chunk that ran of the first.
    assert built.program.names().count("prefill") == 2 + 1


def test_report_d03_expiry_while_waiting_is_a_queue_timeout(scene):
    built = scene()
    gate = built.hold("prefill")
    running = built.submit()
    gate.wait_until_reached()
    with pytest.raises(RequestError) as caught:
        built.submit(deadline=time.monotonic() + 0.01).wait(built.wait_s)
    assert caught.value.kind is RequestErrorKind.QUEUE_TIMEOUT
    gate.open()
    running.wait(built.wait_s)


def test_report_d07_requests_close_behind_each_other_all_succeed(scene):
    built = scene([1] * 30)
    gaps = random.Random(7)
    for _ in range(200):
        streamed = built.submit((1, 2), 3, sink=built.sink())
        time.sleep(gaps.uniform(0, 0.002))
        aggregate = built.submit((3,), 20)
        assert streamed.wait(built.wait_s).completion_tokens == 3
        assert aggregate.wait(built.wait_s).completion_tokens == 20
    assert built.engine.availability() is Availability.READY


def test_report_d07_request_local_failures_leave_the_engine_available(scene):
    built = scene([1] * 30)

    def fail(event):
        if isinstance(event, OutputDelta):
            raise ConnectionResetError

    for _ in range(50):
        with pytest.raises(RequestError):
            built.run(sink=built.sink(fail))
        assert built.run((3,), 20).completion_tokens == 20
    assert built.engine.availability() is Availability.READY


def test_report_d22_the_next_request_completes_after_a_disconnect(scene):
    built = scene([1] * 2000, positions=2000)
    gate = built.hold("decode", 4)
    leaving = built.submit((1,), 1000)
    gate.wait_until_reached()
    leaving.cancel()
    gate.open()
    assert built.run((2,), 5).completion_tokens == 5
    assert leaving.wait(0).completion_tokens < 1000


@pytest.fixture
def clock(monkeypatch):
    """The clock of the heartbeat, in seconds, set by the test."""
    now = [100.0]
    monkeypatch.setattr(
        "ninfer_runtime.engine.stats.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    return now


def test_report_d22_a_blocked_worker_shows_in_its_heartbeat(scene, clock):
    built = scene()
    assert built.engine.stats().heartbeat_age_s == 0
    gate = built.hold("decode")
    handle = built.submit()
    gate.wait_until_reached()
    clock[0] += 31
    assert built.engine.stats().heartbeat_age_s == 31
    gate.open()
    handle.wait(built.wait_s)
    assert built.engine.stats().heartbeat_age_s == 0


def test_report_d22_a_working_engine_keeps_its_heartbeat_young(scene, clock):
    built = scene([1] * 100)
    ages = []

    def slow_step(unit, count):
        clock[0] += 5
        ages.append(built.engine.stats().heartbeat_age_s)

    built.program.before_unit = slow_step
    built.run(max_output_tokens=50)
    assert ages == [5] * 50


def test_report_d22_an_idle_engine_has_no_age(scene, clock):
    built = scene()
    built.run()
    clock[0] += 1000
    assert built.engine.stats().heartbeat_age_s == 0
