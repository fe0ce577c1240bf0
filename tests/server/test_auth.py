"""API keys."""

import pytest

from ninfer_server.settings import digest_api_keys

KEYS = {"api_key_digests": digest_api_keys(["first-key", "sécond"])}


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first-key"},
        {"authorization": "bEARER first-key"},
        {"authorization": "  Bearer \t first-key \t"},
        {"authorization": "Bearer\tfirst-key"},
        {"x-api-key": "first-key"},
        {"x-api-key": "sécond".encode()},
        {"authorization": "Bearer wrong", "x-api-key": "first-key"},
    ],
)
def test_key_is_accepted_in_either_header(make_client, headers):
    assert make_client(**KEYS).get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "first-key"},
        {"authorization": "Basic first-key"},
        {"authorization": "Bearer first-key first-key"},
        {"authorization": "Bearer first-ke"},
        {"x-api-key": ""},
        {"x-api-key": "First-key"},
    ],
)
def test_missing_or_wrong_key_is_refused(make_client, headers):
    answer = make_client(**KEYS).get("/v1/models", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.headers["www-authenticate"] == "Bearer"
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "invalid_api_key"
    assert error["param"] is None


def test_health_and_the_interface_document_need_no_key(make_client):
    client = make_client(**KEYS)
    assert client.get("/health").status_code == 200
    assert client.get("/openapi.json").status_code == 200


def test_unknown_paths_need_a_key(make_client):
    assert make_client(**KEYS).get("/v1/nothing").status_code == 401


def test_preflight_needs_no_key(make_client):
    assert make_client(**KEYS, cors=True).options("/v1/models").status_code == 204


def test_wrong_key_is_refused_before_the_body_is_read(serve):
    with serve(**KEYS).connect() as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 401 ")
