"""Clients that leave: the engine stops for them and the place becomes free."""

import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

PATH = "/v1/chat/completions"
CHUNK_S = 0.05


def chunks_left(program):
    """Sleep in every chunk; returns the script's behaviour for 200 of them."""
    return {
        "chunks": 200,
        "on_chunk": {chunk: lambda: time.sleep(CHUNK_S) for chunk in range(200)},
    }


def slots_taken(server):
    return server.state._slots.taken


def reset(connection):
    """Close with a reset, as a crashed client does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["close", "reset"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_client_that_leaves_during_prefill_frees_its_place(
    server, program, eventually, stream, leave
):
    program.script("never", **chunks_left(program))
    connection = server.send_chat(stream=stream)
    eventually(lambda: program.chunks_executed >= 2)
    leave(connection)
    eventually(lambda: slots_taken(server) == 0)
    executed = program.chunks_executed
    assert executed < 20
    time.sleep(2 * CHUNK_S)
    assert program.chunks_executed <= executed + 1


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_client_that_leaves_during_decoding_frees_its_place(server, program, eventually, stream):
    (word,) = program.tokens("x")
    program.script([word] * 2000, on_every_token=lambda: time.sleep(0.005))
    connection = server.send_chat(stream=stream)
    eventually(lambda: program.tokens_given >= 5)
    connection.close()
    eventually(lambda: slots_taken(server) == 0)
    assert program.tokens_given < 1000


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_client_that_leaves_while_it_waits_is_never_executed(
    server, program, engine, eventually, stream
):
    gate = program.gate()
    program.script("first", on_chunk={0: gate})
    program.script("third")
    first = server.send_chat()
    gate.wait()
    second = server.send_chat(stream=stream)
    eventually(lambda: engine.stats().waiting == 1)
    second.close()
    eventually(lambda: engine.stats().waiting == 0 and slots_taken(server) == 1)
    gate.open()
    assert server.read_chat(first) == "first"
    answer = server.client.post(PATH, json={"model": "scripted", "messages": [USER]})
    assert answer.json()["choices"][0]["message"]["content"] == "third"
    assert len(program.prompts) == 2


USER = {"role": "user", "content": "next"}


def test_client_that_leaves_while_its_prompt_is_prepared_frees_its_place(
    server, program, engine, monkeypatch, eventually
):
    gate = program.gate()
    prepare = engine.prepare

    def slow(prompt):
        gate()
        return prepare(prompt)

    monkeypatch.setattr(engine, "prepare", slow)
    connection = server.send_chat()
    gate.wait()
    connection.close()
    time.sleep(0.05)
    # The place is taken as long as a thread works for the request.
    assert slots_taken(server) == 1
    gate.open()
    eventually(lambda: slots_taken(server) == 0)
    assert program.prompts == []


def test_report_d03_waiting_request_is_admitted_when_the_running_client_leaves(
    server, program, body, eventually
):
    program.script("never", **chunks_left(program))
    program.script("mine")
    connection = server.send_chat(stream=True)
    eventually(lambda: program.chunks_executed >= 2)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(server.client.post, PATH, json=body())
        eventually(lambda: slots_taken(server) == 2)
        left = time.monotonic()
        connection.close()
        answer = waiting.result()
    assert answer.json()["choices"][0]["message"]["content"] == "mine"
    assert time.monotonic() - left < 3.0  # the whole prefill would take 10 seconds
    assert program.chunks_executed < 20


def test_report_d03_expiry_is_503_and_never_408(serve, program, body):
    server = serve(pending_timeout_s=0.1)
    gate = program.gate()
    program.script("first", on_chunk={0: gate})
    connection = server.send_chat()
    gate.wait()
    answer = server.client.post(PATH, json=body())
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["code"] == "request_queue_timeout"
    gate.open()
    assert server.read_chat(connection) == "first"


def test_report_d22_next_request_completes_after_a_disconnect(server, program, body, eventually):
    (word,) = program.tokens("x")
    program.script([word] * 1000, on_every_token=lambda: time.sleep(0.01))
    program.script("hi yourself")
    connection = server.send_chat(stream=True)
    eventually(lambda: program.tokens_given >= 5)
    connection.close()
    answer = server.client.post(PATH, json=body("hi"))
    assert answer.json()["choices"][0]["message"]["content"] == "hi yourself"
    assert program.tokens_given < 500


def test_report_d22_blocked_worker_makes_the_server_unhealthy(serve, program, eventually):
    server = serve(stall_s=0.1)
    gate = program.gate()
    program.script("slow", on_token={1: gate})
    connection = server.send_chat()
    gate.wait()
    eventually(lambda: server.client.get("/health").status_code == 503)
    gate.open()
    assert server.read_chat(connection) == "slow"
    assert server.client.get("/health").status_code == 200


def test_many_clients_that_leave_at_random_do_not_leak(server, program, body, eventually):
    for index in range(20):
        connection = server.send_chat(stream=index % 2 == 0)
        time.sleep(index % 5 * 0.002)
        connection.close()
    eventually(lambda: slots_taken(server) == 0)
    assert server.client.post(PATH, json=body()).status_code == 200
    eventually(lambda: not server.state._generations)
