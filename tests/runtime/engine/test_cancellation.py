import gc

import pytest

from ninfer_runtime.engine.handle import GenerationHandle
from ninfer_runtime.engine.request import FinishReason, OutputDelta, PromptProgress
from ninfer_runtime.engine.stats import Availability
from ninfer_runtime.errors import RequestError, RequestErrorKind


def test_cancelling_while_waiting_ends_at_once(scene):
    built = scene()
    gate = built.hold("prefill")
    running = built.submit()
    gate.wait_until_reached()
    waiting = built.submit((7,))
    waiting.cancel()
    result = waiting.wait(0)
    assert result.finish_reason is FinishReason.CANCELLED
    assert (result.text, result.prompt_tokens, result.completion_tokens) == ("", 1, 0)
    gate.open()
    assert running.wait(built.wait_s).text == "abc"
    assert built.program.names().count("begin") == 1


def test_cancelling_while_prefilling_ends_after_the_chunk(scene):
    built = scene(chunk=1)
    gate = built.hold("prefill", 3)
    sink = built.sink()
    handle = built.submit((1,) * 20, sink=sink)
    gate.wait_until_reached()
    handle.cancel()
    gate.open()
    result = handle.wait(built.wait_s)
    assert result.finish_reason is FinishReason.CANCELLED
    assert result.completion_tokens == 0
    assert built.program.names() == ["begin", *["prefill"] * 3, "finish"]
    assert sink.events[-1] == PromptProgress(20, 2)


def test_cancelling_while_decoding_shows_nothing_of_the_last_step(scene):
    built = scene([1, 2, 3, 4, 5])
    gate = built.hold("decode", 2)
    sink = built.sink()
    handle = built.submit(sink=sink)
    gate.wait_until_reached()
    handle.cancel()
    gate.open()
    result = handle.wait(built.wait_s)
    assert result.finish_reason is FinishReason.CANCELLED
    assert result.token_ids == (1, 2)
    assert result.text == sink.text == "ab"


def test_a_receiver_may_cancel_its_own_request(scene):
    built = scene([1] * 50)
    handles: list[GenerationHandle] = []

    def cancel_at_five(event):
        if isinstance(event, OutputDelta) and event.completion_tokens == 5:
            handles[0].cancel()

    gate = built.hold("prefill")
    handles.append(built.submit(max_output_tokens=50, sink=built.sink(cancel_at_five)))
    gate.open()
    result = handles[0].wait(built.wait_s)
    assert result.token_ids == (1,) * 5
    assert built.program.names().count("decode") == 4


def test_held_back_text_is_flushed_on_cancellation(scene):
    built = scene([1] * 50)
    built.frontend.on_close = lambda output: (OutputDelta("content", "!", 1),)
    sink = built.sink()
    gate = built.hold("decode")
    handle = built.submit(sink=sink)
    gate.wait_until_reached()
    handle.cancel()
    gate.open()
    handle.wait(built.wait_s)
    assert sink.text == "a!"


def test_the_next_request_runs_after_a_cancellation(scene):
    built = scene(chunk=1)
    gate = built.hold("prefill", 2)
    first = built.submit((1, 2, 3))
    second = built.submit((4,))
    gate.wait_until_reached()
    first.cancel()
    gate.open()
    assert second.wait(built.wait_s).text == "abc"


def test_cancelling_a_finished_request_changes_nothing(scene):
    built = scene()
    handle = built.submit()
    handle.wait(built.wait_s)
    handle.cancel()
    assert handle.wait(0).finish_reason is FinishReason.STOP_TOKEN


def test_dropping_the_handle_cancels(scene):
    built = scene([1] * 50)
    gate = built.hold("decode", 2)
    handle = built.submit(max_output_tokens=50)
    gate.wait_until_reached()
    del handle
    gc.collect()
    gate.open()
    built.run()
    assert built.frontend.outputs[0].closed_with is FinishReason.CANCELLED


@pytest.mark.parametrize("event_number", [0, 1, 2, 3, 4])
def test_a_receiver_that_raises_ends_its_request_only(scene, event_number):
    built = scene()

    def fail(event):
        if len(sink.events) == event_number + 1:
            raise ValueError("gone")

    sink = built.sink(fail)
    with pytest.raises(RequestError, match=r"receiver.*gone") as caught:
        built.run(sink=sink)
    assert caught.value.kind is RequestErrorKind.CANCELLED
    assert isinstance(caught.value.__cause__, ValueError)
    assert len(sink.events) == event_number + 1
    assert built.run().text == "abc"
    assert built.engine.availability() is Availability.READY


def test_a_receiver_that_exits_does_not_end_the_worker(scene):
    built = scene()

    def leave(event):
        raise SystemExit(3)

    with pytest.raises(RequestError):
        built.run(sink=built.sink(leave))
    assert built.run().text == "abc"
