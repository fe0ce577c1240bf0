"""Bodies of any kind are either understood or refused; they never make the server fail."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_server.errors import ApiError
from ninfer_server.openai_chat.schema import ChatCompletionRequest, ChatMessage, ContentPart
from ninfer_server.openai_chat.translate import ChatCall, translate
from ninfer_server.settings import ServerSettings

WORDS = st.sampled_from(
    [
        "text",
        "function",
        "user",
        "tool",
        "auto",
        "none",
        "required",
        "allowed_tools",
        "low",
        "f",
        "",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "function", "name", "mode", "tools", "url", "arguments", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


def record(model, fields=None):
    """An object with some of a model's fields, their values arbitrary unless given."""
    known = dict.fromkeys(model.model_fields, VALUES) | (fields or {})
    return st.fixed_dictionaries({}, optional=known)


PARTS = st.lists(record(ContentPart, {"type": WORDS, "text": st.text()}), max_size=3)
MESSAGES = st.lists(
    record(
        ChatMessage,
        {
            "role": st.sampled_from(["system", "user", "assistant", "tool", "function", "odd"]),
            "content": st.none() | st.text() | PARTS | VALUES,
            "tool_call_id": st.text(max_size=3),
        },
    ),
    max_size=4,
)
BODIES = record(ChatCompletionRequest, {"model": st.just("m"), "messages": MESSAGES})
PLAIN = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@settings(max_examples=200, deadline=None)
@given(body=BODIES, mode=st.sampled_from(["lenient", "strict"]))
def test_any_fields_are_understood_or_refused(body, mode):
    check(body, mode)


@settings(max_examples=200, deadline=None)
@given(
    field=st.sampled_from(sorted(ChatCompletionRequest.model_fields)),
    value=VALUES,
    mode=st.sampled_from(["lenient", "strict"]),
)
def test_any_value_of_one_field_is_understood_or_refused(field, value, mode):
    check({**PLAIN, field: value}, mode)


def check(body, mode):
    outcome = outcome_of(body, ServerSettings(compatibility=mode))
    if isinstance(outcome, ChatCall):
        assert all(value.isascii() and value.isprintable() for value in outcome.headers.values())
    else:
        assert outcome.status in (400, 404)
        assert outcome.param is not None
        json.dumps(outcome.body(), ensure_ascii=False).encode()


def outcome_of(body, server):
    try:
        return translate(body, "m", server)
    except ApiError as error:
        return error


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_answered_with_an_error_body(client, content):
    answer = client.post("/v1/chat/completions", content=content)
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
