"""Stopping: who may finish, who is told at once, and how the process ends."""

import asyncio
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

PATH = "/v1/chat/completions"


@pytest.fixture
def stop():
    """Begin to stop a server; returns when it has stopped, and what makes it hurry."""

    def begin(server):
        at_once = asyncio.Event()
        done = server.call(lambda: server.state.stop(at_once))
        return done, lambda: server.call(lambda: _set(at_once))

    async def _set(event):
        event.set()

    return begin


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_running_request_may_finish(server, program, body, stop, stream):
    gate = program.gate()
    program.script("the end", on_token={1: gate})
    with ThreadPoolExecutor() as pool:
        running = pool.submit(server.client.post, PATH, json=body(stream=stream))
        gate.wait()
        done, _ = stop(server)
        time.sleep(0.05)
        assert not done.done()
        gate.open()
        answer = running.result()
        done.result(5)
    assert answer.status_code == 200
    assert " end" in answer.text
    assert ("[DONE]" in answer.text) is stream


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_waiting_request_is_told_at_once(server, program, engine, body, stop, eventually, stream):
    gate = program.gate()
    program.script("first", on_chunk={0: gate})
    with ThreadPoolExecutor() as pool:
        running = pool.submit(server.client.post, PATH, json=body())
        gate.wait()
        waiting = pool.submit(server.client.post, PATH, json=body(stream=stream))
        eventually(lambda: engine.stats().waiting == 1)
        done, _ = stop(server)
        refused = waiting.result()
        assert not running.done()
        gate.open()
        assert running.result().status_code == 200
        done.result(5)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "service_unavailable"
    assert refused.headers["retry-after"] == "5"


def test_new_requests_are_refused_and_their_connections_closed(server, body, stop):
    done, _ = stop(server)
    done.result(5)
    answer = server.client.post(PATH, json=body())
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "service_unavailable"
    assert answer.headers["connection"] == "close"
    assert server.client.get("/v1/models").status_code == 503
    assert server.client.get("/health").status_code == 503


def test_running_stream_gets_an_error_event_when_the_grace_is_over(
    serve, program, events, body, stop
):
    server = serve(shutdown_grace_s=0.1)
    (word,) = program.tokens("x")
    program.script([word] * 3000, on_every_token=lambda: time.sleep(0.005))
    with server.client.stream("POST", PATH, json=body(stream=True)) as answer:
        pieces = answer.iter_raw()
        received = next(pieces)
        started = time.monotonic()
        done, _ = stop(server)
        received += b"".join(pieces)
        done.result(5)
    assert 0.1 <= time.monotonic() - started < 2
    last = events(received)[-1]
    assert last["error"]["code"] == "service_unavailable"
    assert b"[DONE]" not in received


def test_running_request_gets_503_when_the_grace_is_over(serve, program, body, stop):
    server = serve(shutdown_grace_s=0.1)
    gate = program.gate()
    program.script("x", on_token={0: gate})
    with ThreadPoolExecutor() as pool:
        running = pool.submit(server.client.post, PATH, json=body())
        gate.wait()
        stop(server)[0].result(5)
        assert running.result().status_code == 503
        gate.open()


def test_second_signal_ends_the_grace(serve, program, body, stop):
    server = serve(shutdown_grace_s=60)
    gate = program.gate()
    program.script("x", on_token={0: gate})
    with ThreadPoolExecutor() as pool:
        running = pool.submit(server.client.post, PATH, json=body())
        gate.wait()
        done, hurry = stop(server)
        time.sleep(0.05)
        assert not running.done()
        hurry()
        done.result(5)
        assert running.result().status_code == 503
        gate.open()


def test_request_that_is_prepared_is_told_at_once(server, program, engine, monkeypatch, body, stop):
    gate = program.gate()
    prepare = engine.prepare
    monkeypatch.setattr(engine, "prepare", lambda prompt: (gate(), prepare(prompt))[1])
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(server.client.post, PATH, json=body())
        gate.wait()
        stop(server)[0].result(5)
        answer = waiting.result(5)
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == "the server is shutting down"
        gate.open()
    assert program.prompts == []


def test_request_that_is_still_sent_is_told_at_once(server, stop):
    connection = server.connect()
    connection.sendall(
        b'POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\n{"mo'
    )
    time.sleep(0.1)
    stop(server)[0].result(5)
    assert connection.recv(2000).startswith(b"HTTP/1.1 503 ")
    while connection.recv(2000):
        pass


QUESTION = {
    "model": "tiny-qwen3_5",
    "messages": [{"role": "user", "content": "Tell me of the sea."}],
    "ignore_eos": True,
    "max_tokens": 4000,
    "stream": True,
}


def test_idle_process_ends_at_once_with_0(serve_command):
    with serve_command() as (child, ready):
        assert ready["ok"] is True
        assert ready["schema"] == "ninfer-serve/1"
        assert httpx2.get(f"{ready['url']}/health").status_code == 200
        started = time.monotonic()
        child.process.send_signal(signal.SIGINT)
        code, err = child.wait()
        assert code == 0
        assert child.process.stdout.read() == ""
    assert time.monotonic() - started < 5
    assert "Traceback" not in err
    assert "ready url=" in err


def test_busy_process_ends_after_its_grace_with_0(serve_command):
    with serve_command("--shutdown-grace-s", "0.3") as (child, ready):
        with httpx2.stream("POST", f"{ready['url']}{PATH}", json=QUESTION, timeout=30) as answer:
            pieces = answer.iter_raw()
            received = next(pieces)
            child.process.send_signal(signal.SIGTERM)
            received += b"".join(pieces)
        code, err = child.wait()
        assert code == 0
    assert b'"code":"service_unavailable"' in received
    assert "Traceback" not in err


def test_second_signal_ends_a_busy_process_with_0(serve_command):
    with serve_command("--shutdown-grace-s", "600") as (child, ready):
        with httpx2.stream("POST", f"{ready['url']}{PATH}", json=QUESTION, timeout=30) as answer:
            pieces = answer.iter_raw()
            next(pieces)
            child.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert child.process.poll() is None
            assert httpx2.get(f"{ready['url']}/health").status_code == 503
            child.process.send_signal(signal.SIGINT)
            assert b"[DONE]" not in b"".join(pieces)
        assert child.wait()[0] == 0
