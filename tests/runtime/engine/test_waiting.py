"""The queue in front of the worker: order, bounds and deadlines."""

import gc
import math
import threading
import time

import pytest

from ninfer_runtime.engine.request import FinishReason
from ninfer_runtime.errors import RequestError, RequestErrorKind


def begun(built):
    return [call[1] for call in built.program.calls if call[0] == "begin"]


def test_requests_run_in_the_order_of_submission(scene):
    built = scene()
    gate = built.hold("prefill")
    handles = [built.submit((token,)) for token in range(1, 9)]
    gate.open()
    for handle in handles:
        assert handle.wait(built.wait_s).text == "abc"
    assert begun(built) == [(token,) for token in range(1, 9)]


def test_requests_of_many_threads_all_get_their_own_answer(scene):
    built = scene(max_pending_requests=64)
    answers = {}

    def ask(token):
        answers[token] = built.run((token,) * token).prompt_tokens

    threads = [threading.Thread(target=ask, args=(token,)) for token in range(1, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {token: token for token in range(1, 20)}


def test_one_request_beyond_the_bound_is_refused_at_once(scene):
    built = scene(max_pending_requests=3)
    gate = built.hold("prefill")
    handles = [built.submit() for _ in range(4)]
    with pytest.raises(RequestError, match="4 requests") as caught:
        built.submit()
    assert caught.value.kind is RequestErrorKind.OVERLOADED
    gate.open()
    assert all(handle.wait(built.wait_s).text == "abc" for handle in handles)


def test_a_place_is_free_once_the_outcome_is_taken(scene):
    built = scene(max_pending_requests=1)
    first, second = built.submit(), built.submit()
    done = threading.Event()
    second.add_done_callback(done.set)
    assert done.wait(built.wait_s)
    with pytest.raises(RequestError):
        built.submit()
    first.wait(built.wait_s)
    built.submit().wait(built.wait_s)
    second.wait(built.wait_s)


def test_a_place_is_free_once_the_handle_is_dropped(scene):
    built = scene(max_pending_requests=1)
    gate = built.hold("prefill")
    first = built.submit()
    second = built.submit()
    gate.wait_until_reached()
    del second
    gc.collect()
    built.submit()
    gate.open()
    assert first.wait(built.wait_s).text == "abc"


def test_a_failed_request_gives_its_place_back(scene):
    built = scene(max_pending_requests=1)
    built.frontend.on_token = lambda token: 1 / 0
    for _ in range(5):
        with pytest.raises(RequestError):
            built.run()


def test_waiting_too_long_is_an_error(scene):
    built = scene(pending_timeout_s=0.05)
    gate = built.hold("prefill")
    running = built.submit()
    gate.wait_until_reached()
    waiting = built.submit()
    # The worker is stuck; the one who waits for the outcome notices the deadline itself.
    with pytest.raises(RequestError, match="waited") as caught:
        waiting.wait(built.wait_s)
    assert caught.value.kind is RequestErrorKind.QUEUE_TIMEOUT
    gate.open()
    assert running.wait(built.wait_s).text == "abc"
    assert len(begun(built)) == 1


def test_the_worker_expires_waiting_requests_at_its_boundaries(scene):
    built = scene(chunk=1)
    gate = built.hold("prefill", 2)
    running = built.submit((1, 2, 3, 4))
    gate.wait_until_reached()
    waiting = built.submit(deadline=time.monotonic())
    expired = threading.Event()
    waiting.add_done_callback(expired.set)
    second_gate = built.hold("prefill", 2)
    gate.open()
    second_gate.wait_until_reached()
    assert expired.is_set()
    second_gate.open()
    running.wait(built.wait_s)
    with pytest.raises(RequestError):
        waiting.wait(0)


def test_a_request_that_has_begun_has_no_deadline(scene):
    built = scene(pending_timeout_s=0.02)
    gate = built.hold("decode")
    handle = built.submit()
    gate.wait_until_reached()
    time.sleep(0.05)
    gate.open()
    assert handle.wait(built.wait_s).text == "abc"


def test_a_deadline_of_the_caller_wins(scene):
    built = scene(pending_timeout_s=1000.0)
    gate = built.hold("prefill")
    running = built.submit()
    gate.wait_until_reached()
    with pytest.raises(RequestError) as caught:
        built.submit(deadline=time.monotonic() + 0.02).wait(built.wait_s)
    assert caught.value.kind is RequestErrorKind.QUEUE_TIMEOUT
    gate.open()
    running.wait(built.wait_s)


def test_an_endless_wait_is_no_error(scene):
    built = scene(pending_timeout_s=1e10)
    assert built.submit().wait().text == "abc"
    assert built.submit(deadline=math.inf).wait().text == "abc"
    assert built.submit(deadline=math.inf).wait(1e10).text == "abc"


def test_waiting_shorter_than_the_request_takes_changes_nothing(scene):
    built = scene()
    gate = built.hold("prefill")
    handle = built.submit()
    with pytest.raises(TimeoutError):
        handle.wait(0.01)
    assert not handle.done
    gate.open()
    assert handle.wait(built.wait_s).finish_reason is FinishReason.STOP_TOKEN
    assert handle.done
    assert handle.wait(0).text == "abc"


def test_stats_show_what_waits(scene):
    built = scene()
    gate = built.hold("prefill")
    handles = [built.submit() for _ in range(3)]
    gate.wait_until_reached()
    stats = built.engine.stats()
    assert (stats.running, stats.waiting) == (1, 2)
    gate.open()
    for handle in handles:
        handle.wait(built.wait_s)
