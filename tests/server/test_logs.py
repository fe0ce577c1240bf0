"""Lines on stderr: their form, and what is never in them."""

import logging
import re

import pytest

from ninfer_server.logs import configure_logging, get_logger
from ninfer_server.settings import digest_api_keys

PATH = "/v1/chat/completions"
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  [A-Z]+  .+")


@pytest.fixture
def log():
    lines: list[str] = []

    def begin(level):
        configure_logging(level, lines.append)
        return lines

    yield begin
    configure_logging("off", print)


def test_line_has_the_documented_form(log):
    lines = log("info")
    get_logger().info("something happened", id="req_1", seconds=1.23456, text='a "b"\nc')
    (line,) = lines
    assert LINE.fullmatch(line)
    assert line.endswith(r'INFO  something happened id=req_1 seconds=1.235 text="a \"b\"\nc"')


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("trace", 4),
        ("debug", 4),
        ("info", 3),
        ("warning", 2),
        ("error", 1),
        ("critical", 0),
        ("off", 0),
    ],
)
def test_level_decides_what_is_shown(log, level, shown):
    lines = log(level)
    for write in ("debug", "info", "warning", "error"):
        getattr(get_logger(), write)("x")
    assert len(lines) == shown


def test_libraries_log_in_the_same_form_and_warnings_only(log):
    lines = log("debug")
    for name in ("uvicorn.error", "sse_starlette.sse", "asyncio"):
        logging.getLogger(name).debug("chunk: secret")
        logging.getLogger(name).warning("odd\nthing")
    assert len(lines) == 3
    assert all(LINE.fullmatch(line) and line.endswith("WARNING  odd thing") for line in lines)


def test_nothing_of_a_request_is_logged_but_numbers(log, serve, program, engine, monkeypatch, body):
    lines = log("trace")
    server = serve(api_key_digests=digest_api_keys(["key-of-ada"]))
    headers = {"authorization": "Bearer key-of-ada"}
    for streamed in (False, True):
        program.script("the-answer-text\n</think>\n\nmore-of-it")
        fields = {"stream": streamed, "user": "ada-lovelace", "top_k": 40, "enable_thinking": True}
        assert (
            server.client.post(PATH, json=body("the-question", **fields), headers=headers)
        ).status_code == 200
    server.client.post(PATH, json=body("the-question"), headers={"x-api-key": "key-of-eve"})
    server.client.post(PATH, json={**body(), "model": "odd-model-name"}, headers=headers)
    server.client.post(PATH, json=body("the-question", n=7), headers=headers)
    server.client.get("/odd-path?odd-query=1", headers=headers)

    def fail(prompt):
        raise RuntimeError(str(prompt))

    monkeypatch.setattr(engine, "prepare", fail)
    server.client.post(PATH, json=body("the-question"), headers=headers)
    text = "\n".join(lines)
    for secret in (
        "the-question",
        "the-answer",
        "more-of-it",
        "lovelace",
        "key-of",
        "odd-",
    ):
        assert secret not in text
    assert text.count("request finished") == 2
    assert "finish_reason=stop_token" in text
    assert "exception=RuntimeError" in text
    assert "code=invalid_api_key" in text
    assert all(LINE.fullmatch(line) for line in lines)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_client_that_left_is_logged(log, server, program, eventually, stream):
    lines = log("info")
    gate = program.gate()
    program.script("x", on_token={1: gate})
    connection = server.send_chat(stream=stream)
    gate.wait()
    connection.close()
    eventually(lambda: any("status=499 code=client_disconnected" in line for line in lines))
    gate.open()


def test_failure_of_the_engine_is_logged_with_its_place(log, client, program, body):
    lines = log("info")

    def break_down():
        raise OSError("the-question")

    program.script("x", on_chunk={0: break_down})
    assert client.post(PATH, json=body("the-question")).status_code == 503
    (error,) = (line for line in lines if "  ERROR  " in line)
    assert "exception=OSError" in error
    assert "break_down:" in error
    assert "the-question" not in "".join(lines)
