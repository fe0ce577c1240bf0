"""Paths, methods, health, models and the interface document."""

import re
import time

import pytest

from ninfer_runtime.engine.stats import Availability


def test_unknown_path_has_an_error_body(client):
    for path in ("/", "/nothing", "/v1/embeddings", "/docs", "/redoc", "/v1/messages"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"


def test_wrong_method_names_the_right_one(client):
    for path, method in (("/v1/chat/completions", "GET"), ("/v1/models", "POST")):
        answer = client.request(method, path)
        assert answer.status_code == 405
        assert answer.json()["error"]["code"] == "method_not_allowed"
        assert answer.headers["allow"] == {"GET": "POST", "POST": "GET"}[method]


def test_trailing_slash_is_the_same_path(client, body):
    assert client.get("/v1/models/", follow_redirects=False).status_code == 200
    answer = client.post("/v1/chat/completions/", json=body(), follow_redirects=False)
    assert answer.status_code == 200


def test_request_id_is_on_every_answer_of_the_interface(client):
    seen = set()
    for path in ("/v1/models", "/v1/models/other", "/v1/nothing"):
        request_id = client.get(path).headers["x-request-id"]
        assert re.fullmatch(r"req_[0-9a-f]{32}", request_id)
        seen.add(request_id)
    assert len(seen) == 3
    assert "x-request-id" not in client.get("/health").headers


def test_the_model_was_created_when_the_server_started(client, monkeypatch):
    def created() -> object:
        return client.get("/v1/models").json()["data"][0]["created"]

    first = created()
    monkeypatch.setattr(time, "time", lambda: 1e12)
    assert created() == first


def test_models_lists_the_one_that_is_served(client):
    answer = client.get("/v1/models").json()
    assert answer["object"] == "list"
    (entry,) = answer["data"]
    created = entry.pop("created")
    assert isinstance(created, int)
    assert entry == {
        "id": "scripted",
        "object": "model",
        "owned_by": "ninfer",
        "max_model_len": 4096,
        "meta": {
            "n_vocab": 4096,
            "n_ctx": 4096,
            "n_ctx_train": 32768,
            "n_embd": 256,
            "n_params": 1000,
            "size": 2000,
            "ftype": "bf16+q8_g32_fp16",
        },
    }
    assert client.get("/v1/models/scripted").json() == {**entry, "created": created}


def test_model_may_have_a_slash_in_its_name(make_client):
    client = make_client(model_id="group/model")
    assert client.get("/v1/models/group/model").json()["id"] == "group/model"


def test_other_model_is_not_found(client, body):
    answer = client.get("/v1/models/other")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    answer = client.post("/v1/chat/completions", json={**body(), "model": "other"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert answer.json()["error"]["param"] == "model"


def test_any_model_is_taken_and_echoed_on_request(make_client, body):
    client = make_client(accept_any_model=True)
    answer = client.post("/v1/chat/completions", json={**body(), "model": "gpt-x"})
    assert answer.json()["model"] == "gpt-x"


def test_health_follows_the_engine(client, engine, monkeypatch):
    assert client.get("/health").json() == {"status": "ok"}
    monkeypatch.setattr(engine, "availability", lambda: Availability.FAILED)
    answer = client.get("/health")
    assert answer.status_code == 503
    assert answer.json() == {"status": "unavailable"}


def test_while_the_model_loads_everything_is_unavailable(engine, serve, body):
    server = serve()
    server.state._engine = None
    assert server.client.get("/health").status_code == 503
    for answer in (
        server.client.get("/v1/models"),
        server.client.post("/v1/chat/completions", json=body()),
    ):
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "service_unavailable"
        assert answer.headers["retry-after"] == "5"
    server.state.attach(engine)
    assert server.client.get("/health").status_code == 200
    assert server.client.post("/v1/chat/completions", json=body()).status_code == 200


def test_interface_document_describes_our_errors_and_not_the_frameworks(client):
    document = client.get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/health",
        "/v1/models",
        "/v1/models/{model_id}",
        "/v1/chat/completions",
    }
    assert "HTTPValidationError" not in str(document)
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert "422" not in chat["responses"]
    reference = chat["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = document["components"]["schemas"][reference.rsplit("/", 1)[1]]
    assert schema["required"] == ["model", "messages"]


def test_every_reference_of_the_interface_document_resolves(client):
    document = client.get("/openapi.json").json()
    references = re.findall(r"'\$ref': '#/components/schemas/([^']+)'", str(document))
    assert references
    assert set(references) <= set(document["components"]["schemas"])


@pytest.mark.parametrize("method", ["put", "delete", "patch"])
def test_framework_errors_never_appear(client, method):
    answer = client.request(method, "/v1/models/x")
    assert answer.status_code == 405
    assert set(answer.json()) == {"error"}
