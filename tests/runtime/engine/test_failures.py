import logging
from types import SimpleNamespace

import numpy as np
import pytest

from ninfer_format.errors import ExitCode
from ninfer_runtime.engine.stats import Availability
from ninfer_runtime.errors import DeviceError, RequestError, RequestErrorKind


def failing(unit, count, error):
    def before_unit(name, number):
        if (name, number) == (unit, count):
            raise error

    return before_unit


def give_bad_logits(built, value):
    def logits():
        row = np.zeros(27, np.float32)
        row[4] = value
        return row

    built.program._logits = logits


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_end_the_request_only(scene, value):
    built = scene()
    healthy = built.program._logits
    give_bad_logits(built, value)
    sink = built.sink()
    with pytest.raises(RequestError) as caught:
        built.run(sink=sink)
    assert caught.value.kind is RequestErrorKind.NON_FINITE_LOGITS
    assert sink.text == ""
    assert built.program.names()[-1] == "discard"
    built.program._logits = healthy
    assert built.run().text == "abc"
    assert built.engine.stats().nonfinite_requests == 1


def test_one_prompt_may_fail_again_and_again(scene):
    built = scene()
    give_bad_logits(built, np.nan)
    for _ in range(10):
        with pytest.raises(RequestError):
            built.run((5, 6))
    assert built.engine.availability() is Availability.READY


def test_three_different_prompts_with_bad_logits_end_the_engine(scene):
    built = scene()
    give_bad_logits(built, np.nan)
    for token, expected in ((1, "ready"), (2, "ready"), (2, "ready"), (3, "failed")):
        with pytest.raises(RequestError) as caught:
            built.run((token,))
        assert caught.value.kind is RequestErrorKind.NON_FINITE_LOGITS
        assert built.engine.availability() == expected
    with pytest.raises(RequestError, match="not finite") as caught:
        built.run()
    assert caught.value.kind is RequestErrorKind.UNAVAILABLE


def test_bad_logits_long_ago_do_not_end_the_engine(scene, monkeypatch):
    built = scene()
    give_bad_logits(built, np.nan)
    now = [1000.0]
    monkeypatch.setattr(
        "ninfer_runtime.engine.nonfinite.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    for token in range(1, 9):
        with pytest.raises(RequestError):
            built.run((token,))
        now[0] += 31
    assert built.engine.availability() is Availability.READY


def test_a_fault_of_the_text_side_ends_the_request_only(scene):
    built = scene()

    def reject(token):
        if token == 2:
            raise KeyError("no such token")

    built.frontend.on_token = reject
    sink = built.sink()
    with pytest.raises(RequestError, match="KeyError") as caught:
        built.run(sink=sink)
    assert caught.value.kind is RequestErrorKind.INTERNAL
    assert caught.value.exit_code == ExitCode.INTERNAL
    assert sink.text == "a"
    assert built.program.names()[-1] == "discard"
    built.frontend.on_token = lambda token: None
    assert built.run().text == "abc"


@pytest.mark.parametrize(("unit", "count"), [("prefill", 1), ("decode", 2)])
def test_running_out_of_memory_ends_the_request_only(scene, unit, count):
    built = scene()
    built.program.before_unit = failing(unit, count, MemoryError())
    with pytest.raises(RequestError, match="memory") as caught:
        built.run()
    assert caught.value.kind is RequestErrorKind.UNAVAILABLE
    assert caught.value.exit_code == ExitCode.CAPACITY
    built.program.before_unit = lambda unit, count: None
    assert built.run().text == "abc"
    assert built.engine.stats().oom_recovered == 1


@pytest.mark.parametrize("error", [DeviceError("device lost"), ValueError("shape")])
@pytest.mark.parametrize(("unit", "count"), [("prefill", 1), ("decode", 2)])
def test_a_failed_program_ends_the_engine(scene, unit, count, error):
    built = scene()
    gate = built.hold("prefill")
    before = built.submit(max_output_tokens=1)
    failed = built.submit()
    waiting = [built.submit() for _ in range(3)]
    gate.wait_until_reached()
    built.program.before_unit = failing(unit, count, error)
    gate.open()
    assert before.wait(built.wait_s).text == "a"
    with pytest.raises(RequestError, match=str(error)) as caught:
        failed.wait(built.wait_s)
    assert caught.value.kind is RequestErrorKind.UNAVAILABLE
    is_known = isinstance(error, DeviceError)
    assert caught.value.exit_code == (ExitCode.UNAVAILABLE if is_known else ExitCode.INTERNAL)
    for handle in waiting:
        with pytest.raises(RequestError, match="the engine failed") as caught:
            handle.wait(built.wait_s)
        assert caught.value.kind is RequestErrorKind.UNAVAILABLE
    assert built.engine.availability() is Availability.FAILED
    with pytest.raises(RequestError) as caught:
        built.submit()
    assert caught.value.kind is RequestErrorKind.UNAVAILABLE


def test_a_failed_engine_stays_failed_when_it_is_closed(scene):
    built = scene()
    built.program.before_unit = failing("prefill", 1, DeviceError("device lost"))
    with pytest.raises(RequestError):
        built.run()
    built.engine.close()
    assert built.engine.availability() is Availability.FAILED


def test_details_of_an_internal_error_reach_the_log(scene, caplog):
    built = scene()
    built.frontend.on_token = lambda token: 1 / 0
    with caplog.at_level(logging.ERROR), pytest.raises(RequestError):
        built.run()
    assert "ZeroDivisionError" in caplog.text


def test_a_bad_option_is_refused_before_anything_is_queued(scene):
    built = scene()
    with pytest.raises(RequestError):
        built.submit((1, 99))
    assert built.engine.stats().waiting == 0
    assert built.program.calls == []
