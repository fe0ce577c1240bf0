import threading

import pytest

from ninfer_runtime.engine.request import FinishReason
from ninfer_runtime.engine.stats import Availability
from ninfer_runtime.errors import RequestError, RequestErrorKind


def close_in_background(built):
    thread = threading.Thread(target=built.engine.close)
    thread.start()
    return thread


def test_closing_settles_every_handle(scene):
    built = scene([1] * 50)
    gate = built.hold("decode", 2)
    running = built.submit(max_output_tokens=50)
    waiting = [built.submit() for _ in range(3)]
    gate.wait_until_reached()
    closing = close_in_background(built)
    for handle in waiting:
        with pytest.raises(RequestError, match="shutting down") as caught:
            handle.wait(built.wait_s)
        assert caught.value.kind is RequestErrorKind.UNAVAILABLE
    gate.open()
    closing.join(built.wait_s)
    result = running.wait(0)
    assert result.finish_reason is FinishReason.CANCELLED
    assert result.token_ids == (1, 1)
    assert built.program.is_closed


def test_a_closed_engine_refuses_requests(scene):
    built = scene()
    assert built.engine.availability() is Availability.READY
    built.engine.close()
    assert built.engine.availability() is Availability.STOPPING
    with pytest.raises(RequestError) as caught:
        built.submit()
    assert caught.value.kind is RequestErrorKind.UNAVAILABLE


def test_closing_twice_is_allowed(scene):
    built = scene()
    built.engine.close()
    built.engine.close()


def test_an_engine_is_a_context_manager(scene):
    built = scene()
    with built.engine as engine:
        assert engine.availability() is Availability.READY
    assert built.program.is_closed


def test_no_thread_remains_after_closing(scene):
    built = scene()
    built.run()
    built.engine.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "ninfer-engine"]
