"""Chat completions that are answered as a stream of events."""

import json
import re
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_server.streaming import encode_event

PATH = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f"}}
CALL = "<tool_call>\n<function=f>\n<parameter=x>\n{}\n</parameter>\n</function>\n</tool_call>"


def deltas_of(chunks):
    return [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]


def joined(chunks, name):
    return "".join(delta.get(name) or "" for delta in deltas_of(chunks))


@pytest.fixture
def stream(client, events, body):
    def run(**fields):
        answer = client.post(PATH, json=body(stream=True, **fields))
        assert answer.status_code == 200, answer.text
        *chunks, done = events(answer.content)
        assert done == "[DONE]"
        assert "[DONE]" not in chunks
        return chunks

    return run


def test_headers_of_a_stream(client, body):
    headers = client.post(PATH, json=body(stream=True)).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert "connection" not in headers
    assert re.fullmatch(r"req_[0-9a-f]{32}", headers["x-request-id"])


def test_order_of_a_plain_answer(stream, program):
    program.script("one two")
    chunks = stream()
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{16}", chunks[0]["id"])
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["model"] for chunk in chunks} == {"scripted"}
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"content": "one"},
        {"content": " two"},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "stop"]
    assert all(choice["index"] == 0 and choice["logprobs"] is None for choice in choices)
    assert all("usage" not in chunk for chunk in chunks)
    assert ["timings" in chunk for chunk in chunks] == [False, False, False, True]


def test_thoughts_come_before_the_answer(stream, program):
    program.script("I think.\n</think>\n\nYes.")
    names = [name for delta in deltas_of(stream(enable_thinking=True))[1:-1] for name in delta]
    assert names == sorted(names, reverse=True)
    assert set(names) == {"reasoning_content", "content"}


def test_usage_comes_last_and_is_null_before(stream, program):
    script = program.script("one two")
    chunks = stream(stream_options={"include_usage": True})
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == len(script.token_ids)
    assert chunks[-1]["usage"]["prompt_tokens"] == len(program.prompts[0])
    assert ["timings" in chunk for chunk in chunks[-2:]] == [False, True]


def test_each_call_is_one_whole_delta_behind_the_text(stream, program):
    program.script("I look.\n" + CALL.format("a") + CALL.format("b"))
    chunks = stream(tools=[TOOL])
    deltas = deltas_of(chunks)
    calls = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert [len(call) for call in calls] == [1, 1]
    for index, (call,) in enumerate(calls):
        assert set(call) == {"index", "id", "type", "function"}
        assert call["index"] == index
        assert re.fullmatch(r"call_[0-9a-f]{16}", call["id"])
        assert call["type"] == "function"
    assert [call["function"] for (call,) in calls] == [
        {"name": "f", "arguments": '{"x":"a"}'},
        {"name": "f", "arguments": '{"x":"b"}'},
    ]
    assert joined(chunks, "content") == "I look."
    assert ["tool_calls" in delta for delta in deltas[-3:]] == [True, True, False]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_progress_of_the_prompt(stream, program):
    program.script("one", chunks=3)
    chunks = stream(return_progress=True)
    reported = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    total = len(program.prompts[0])
    assert all(progress["total"] == total and progress["cache"] == 0 for progress in reported)
    processed = [progress["processed"] for progress in reported]
    assert processed == [0, total // 3, 2 * total // 3, total]
    times = [progress["time_ms"] for progress in reported]
    assert times == sorted(times)
    assert "prompt_progress" in chunks[len(reported)]
    assert deltas_of(chunks)[len(reported) + 1] == {"content": "one"}
    assert all("timings" not in chunk for chunk in chunks[:-1])


def test_progress_is_not_sent_unasked(stream, program):
    program.script("one", chunks=3)
    assert not [chunk for chunk in stream() if "prompt_progress" in chunk]


def test_timings_on_every_piece_of_output(stream, program):
    program.script("one two three", chunks=2)
    chunks = stream(timings_per_token=True, return_progress=True)
    progress = [chunk for chunk in chunks if "prompt_progress" in chunk]
    assert all(chunk["timings"]["predicted_n"] == 0 for chunk in progress)
    assert [chunk["timings"]["prompt_n"] for chunk in progress] == [
        chunk["prompt_progress"]["processed"] for chunk in progress
    ]
    pieces = [chunk for chunk in chunks if chunk["choices"][0]["delta"].get("content")]
    assert [chunk["timings"]["predicted_n"] for chunk in pieces] == [1, 2, 3]
    assert all(value >= 0 for chunk in pieces for value in chunk["timings"].values())


def test_prompt_alone(stream):
    chunks = stream(max_tokens=0, stream_options={"include_usage": True})
    assert deltas_of(chunks) == [{"role": "assistant", "content": ""}, {}]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == 0


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    text=st.text(alphabet='ab \n<>/é日\U0001f600{}"\\\u2028\r', max_size=30),
    is_thinking=st.booleans(),
    limit=st.integers(0, 40),
)
def test_stream_adds_up_to_the_whole_answer(
    client, program, events, body, text, is_thinking, limit
):
    answer_text = f"{text}\n</think>\n\n{text}" if is_thinking else text
    fields = {"enable_thinking": is_thinking, "max_tokens": limit, "tools": [TOOL]}
    program.script(answer_text)
    whole = client.post(PATH, json=body(**fields)).json()
    program.script(answer_text)
    streamed = client.post(
        PATH, json=body(stream=True, stream_options={"include_usage": True}, **fields)
    )
    *chunks, _ = events(streamed.content)
    message = whole["choices"][0]["message"]
    assert joined(chunks, "content") == (message["content"] or "")
    assert joined(chunks, "reasoning_content") == message.get("reasoning_content", "")
    assert chunks[-1]["usage"] == whole["usage"]
    assert chunks[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]


@pytest.mark.parametrize("stream", [False, True])
def test_validation_errors_are_plain_answers(client, body, stream):
    for fields in ({"top_p": 2}, {"n": 2}, {"tools": [{"type": "custom"}]}):
        answer = client.post(PATH, json=body(stream=stream, **fields))
        assert answer.status_code == 400
        assert answer.headers["content-type"] == "application/json"
    answer = client.post(PATH, json=body("x " * 5000, stream=stream))
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_failure_in_the_middle_ends_the_stream_with_an_error(client, program, events, body):
    def fail():
        raise MemoryError

    program.script("one two three", on_token={2: fail})
    answer = client.post(PATH, json=body(stream=True))
    assert answer.status_code == 200
    *chunks, last = events(answer.content)
    assert joined(chunks, "content") == "one two"
    assert last["error"]["code"] == "service_unavailable"
    assert last["error"]["type"] == "server_error"
    assert b"[DONE]" not in answer.content


def test_events_arrive_when_they_happen_and_one_by_one(server, program, body):
    gate = program.gate()
    program.script("one two three", on_token={1: gate})
    with server.client.stream("POST", PATH, json=body(stream=True)) as answer:
        pieces = answer.iter_raw()
        first = b""
        while b'"one"' not in first:
            first += next(pieces)
        assert b'" two"' not in first
        assert not gate._opened.is_set()
        gate.open()
        assert b"[DONE]" in b"".join(pieces)


def test_silence_is_broken_by_comments(serve, program, body):
    server = serve(keep_alive_s=0.1)
    gate = program.gate()
    program.script("one", chunks=2, on_chunk={1: gate})
    with server.client.stream("POST", PATH, json=body(stream=True)) as answer:
        pieces = answer.iter_raw()
        seen = b""
        started = time.monotonic()
        while seen.count(b": keep-alive\n\n") < 3:
            seen += next(pieces)
        waited = time.monotonic() - started
        gate.open()
        rest = b"".join(pieces)
    assert 0.2 < waited < 2
    assert b"\n\n: keep-alive\n\n" in seen
    assert rest.endswith(b"data: [DONE]\n\n")


def test_status_line_waits_for_admission_but_not_for_ever(serve, program, body):
    server = serve(header_hold_s=0.2, keep_alive_s=0.1)
    gate = program.gate()
    program.script("one", on_chunk={0: gate})
    first = threading.Thread(target=lambda: server.client.post(PATH, json=body()))
    first.start()
    gate.wait()
    started = time.monotonic()
    with server.client.stream("POST", PATH, json=body(stream=True)) as answer:
        assert 0.15 < time.monotonic() - started < 2
        assert answer.status_code == 200
        pieces = answer.iter_raw()
        assert next(pieces) == b": keep-alive\n\n"
        gate.open()
        assert b"[DONE]" in b"".join(pieces)
    first.join()


def test_refusal_after_the_status_line_is_an_event(serve, program, events, body):
    server = serve(header_hold_s=0.05, pending_timeout_s=0.3, keep_alive_s=60)
    gate = program.gate()
    program.script("one", on_chunk={0: gate})
    first = threading.Thread(target=lambda: server.client.post(PATH, json=body()))
    first.start()
    gate.wait()
    answer = server.client.post(PATH, json=body(stream=True))
    assert answer.status_code == 200
    (event,) = events(answer.content)
    assert event["error"]["code"] == "request_queue_timeout"
    gate.open()
    first.join()


def test_refusal_before_the_status_line_is_a_plain_answer(serve, program, body):
    server = serve(header_hold_s=5, pending_timeout_s=0.2)
    gate = program.gate()
    program.script("one", on_chunk={0: gate})
    first = threading.Thread(target=lambda: server.client.post(PATH, json=body()))
    first.start()
    gate.wait()
    for stream in (True, False):
        answer = server.client.post(PATH, json=body(stream=stream))
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "request_queue_timeout"
        assert answer.headers["retry-after"] == "1"
    gate.open()
    first.join()


def test_connection_can_be_used_again_after_a_stream(server, body):
    with server.connect() as connection:
        for _ in range(2):
            raw = b'{"model":"scripted","stream":true,"messages":[{"role":"user","content":"x"}]}'
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\n"
                + f"Content-Length: {len(raw)}\r\n\r\n".encode()
                + raw
            )
            answer = b""
            while not answer.endswith(b"0\r\n\r\n"):
                answer += connection.recv(65536)
            assert b"[DONE]" in answer


def test_event_is_one_line_for_every_client():
    payload = {"text": "a\u2028b\u2029c\x85d\ne\x0bf\x1cg é"}
    event = encode_event(payload).decode()
    assert len(event.splitlines()) == 2
    assert json.loads(event.removeprefix("data: ")) == payload


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_only_one_call_is_written_if_more_are_not_allowed(client, program, events, body, stream):
    call = "<tool_call>\n<function=f>\n</function>\n</tool_call>"
    program.script(f"Wait. {call}\n{call}")
    tools = [{"type": "function", "function": {"name": "f"}}]
    answer = client.post(PATH, json=body(stream=stream, tools=tools, parallel_tool_calls=False))
    assert answer.content.count(b'"call_') == 1
    choice = events(answer.content)[-2]["choices"][0] if stream else answer.json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert program.tokens_given <= len(program.tokens(f"Wait. {call}\n"))
