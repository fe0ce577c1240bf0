"""Cross-origin requests."""

ORIGIN = {"origin": "http://page.example"}


def test_nothing_is_allowed_without_the_option(client):
    answer = client.get("/v1/models", headers=ORIGIN)
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert client.options("/v1/models", headers=ORIGIN).status_code == 405


def test_every_answer_carries_the_headers(make_client, body):
    client = make_client(cors=True)
    answers = [
        client.get("/health"),
        client.get("/nowhere"),
        client.post("/v1/chat/completions", content=b"{"),
        client.post("/v1/chat/completions", json=body(stream=True)),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 400, 200]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["access-control-expose-headers"] == "x-request-id, request-id"
        assert answer.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
        assert answer.headers["access-control-allow-headers"] == (
            "Authorization, Content-Type, X-API-Key, anthropic-version, anthropic-beta, "
            "anthropic-user-profile-id"
        )


def test_preflight_is_answered_empty_and_echoes_the_headers_that_it_asks_for(make_client):
    answer = make_client(cors=True).options(
        "/v1/chat/completions",
        headers={
            **ORIGIN,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, x-stainless-os, x-stainless-lang",
        },
    )
    assert answer.status_code == 204
    assert answer.content == b""
    allowed = answer.headers["access-control-allow-headers"]
    assert allowed.startswith("Authorization, Content-Type")
    assert allowed.endswith(", x-stainless-os, x-stainless-lang")
    assert allowed.lower().count("authorization") == 1
