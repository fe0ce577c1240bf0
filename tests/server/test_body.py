"""Request bodies: size, encoding and JSON."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse

import pytest

from ninfer_server.body import parse_json_object
from ninfer_server.errors import ApiError
from ninfer_server.openai_chat import router
from ninfer_server.openai_chat.translate import translate

PATH = "/v1/chat/completions"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"{'model': 1}",
        b'{"model": NaN}',
        b'{"model": Infinity}',
        b'{"model": -Infinity}',
        b'{"model": "\xff"}',
        b'\xef\xbb\xbf{"model": "x"}',
        b'{"model": "\\ud83d"}',
        b'{"\\udc00": 1}',
        b'{"a": ["\\ud83d\\u0041"]}',
        b'{"model": "x",}',
        b'{"model": "x"} {}',
        b'{"model": "a\nb"}',
        b"[" * 100_000,
        b'{"a":' * 1000 + b"1" + b"}" * 1000,
    ],
)
def test_what_is_not_json_is_refused(client, content):
    answer = client.post(PATH, content=content)
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "body is not valid JSON",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }


@pytest.mark.parametrize("content", [b"[]", b'"x"', b"1", b"null", b"true"])
def test_body_must_be_an_object(client, content):
    answer = client.post(PATH, content=content)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "request body must be a JSON object"


def test_whole_surrogate_pairs_are_characters():
    assert parse_json_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


def test_members_keep_their_order_and_the_last_of_equals_wins():
    assert list(parse_json_object(b'{"z": 1, "a": 2, "m": 3}')) == ["z", "a", "m"]
    assert parse_json_object(b'{"a": 1, "a": 2}') == {"a": 2}


def test_content_type_is_not_checked(client, body):
    content = json.dumps(body()).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "garbage"):
        answer = client.post(PATH, content=content, headers={"content-type": kind})
        assert answer.status_code == 200
    assert client.post(f"{PATH}?beta=true", content=content).status_code == 200


def test_compressed_body_is_refused(client, body):
    content = gzip.compress(json.dumps(body()).encode())
    answer = client.post(PATH, content=content, headers={"content-encoding": "gzip"})
    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "content_encoding_not_supported"


def test_identity_encoding_is_none(client, body):
    answer = client.post(PATH, json=body(), headers={"content-encoding": "identity"})
    assert answer.status_code == 200


def test_too_long_a_body_is_refused_by_its_announced_length(serve):
    with serve(max_request_bytes=1000).connect() as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nContent-Length: 1001\r\n\r\n"
        )
        answer = HTTPResponse(connection)
        answer.begin()
        assert answer.status == 413
        error = json.load(answer)["error"]
    assert error["code"] == "request_too_large"
    assert "1000 bytes" in error["message"]


def test_too_long_a_body_is_refused_by_its_received_length(serve):
    with serve(max_request_bytes=1000).connect() as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n" + b"3e9\r\n" + b" " * 1001 + b"\r\n"
        )
        assert connection.recv(2000).startswith(b"HTTP/1.1 413 ")


def test_connection_serves_on_after_a_body_that_was_too_long(serve, body):
    server = serve(max_request_bytes=100_000)
    refused = server.client.post(PATH, content=b" " * 10_000_000)
    assert refused.status_code == 413
    assert server.client.post(PATH, json=body()).status_code == 200


def test_body_of_exactly_the_limit_is_read(make_client):
    client = make_client(max_request_bytes=1000)
    assert client.post(PATH, content=b" " * 1000).json()["error"]["code"] is None
    assert client.post(PATH, content=b" " * 1001).status_code == 413


def test_client_that_leaves_in_the_middle_of_its_body_does_no_harm(server, body):
    with server.connect() as connection:
        connection.sendall(
            b'POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\n{"mo'
        )
    assert server.client.post(PATH, json=body()).status_code == 200


def test_long_body_does_not_hold_up_the_server(server, program, monkeypatch, body):
    gate = program.gate()
    monkeypatch.setattr(router, "translate", lambda *call: (gate(), translate(*call))[1])
    with ThreadPoolExecutor() as pool:
        long = pool.submit(server.client.post, PATH, json=body(user="x" * 100_000))
        gate.wait()
        assert server.client.get("/health").status_code == 200
        gate.open()
        assert long.result().status_code == 200


def test_depth_that_the_engine_cannot_walk_is_refused():
    with pytest.raises(ApiError, match="not valid JSON"):
        parse_json_object(b'{"a":' + b"[" * 500 + b"]" * 500 + b"}")
