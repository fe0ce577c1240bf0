"""The types of a chat completion's fields."""

import time

import pytest

from ninfer_server.errors import ApiError
from ninfer_server.openai_chat.schema import parse_chat_request

USER = {"role": "user", "content": "hi"}


def refusal(**fields):
    body = {"model": "m", "messages": [USER], **fields}
    with pytest.raises(ApiError) as caught:
        parse_chat_request(body)
    assert caught.value.status == 400
    assert caught.value.wire_code is None
    return caught.value.param


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stream", "true"),
        ("stream", 1),
        ("ignore_eos", 0),
        ("max_tokens", True),
        ("max_tokens", "5"),
        ("max_tokens", 1.0),
        ("max_tokens", -1),
        ("max_completion_tokens", -1),
        ("temperature", True),
        ("temperature", "1"),
        ("temperature", 2.01),
        ("temperature", -0.1),
        ("top_p", 1.1),
        ("top_k", 1.0),
        ("top_k", -2),
        ("min_p", -0.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("seed", 1.5),
        ("n", "1"),
        ("stop", ""),
        ("stop", 5),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("logprobs", 0),
        ("stream_options", []),
        ("tools", {}),
        ("tool_choice", 1),
        ("tool_constraints", "full"),
        ("reasoning_effort", "hard"),
        ("verbosity", "loud"),
        ("prompt_cache_retention", "1h"),
        ("prompt_cache_key", "k" * 65),
        ("safety_identifier", "k" * 65),
        ("user", 1),
        ("chat_template_kwargs", []),
        ("messages", []),
        ("messages", "hi"),
        ("model", ""),
        ("model", 5),
        ("model", None),
        ("messages", None),
    ],
)
def test_value_of_a_wrong_type_or_range_is_refused_by_name(field, value):
    assert refusal(**{field: value}) == field


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"messages": [USER, 5]}, "messages[1]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": 1, "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [1]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
            "messages[0].content[0].text",
        ),
        ({"messages": [USER, {**USER, "name": 1}]}, "messages[1].name"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]},
            "messages[0].tool_calls[0].function",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]},
            "messages[0].tool_calls[0].id",
        ),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]},
            "tools[0].function.strict",
        ),
        ({"logit_bias": {"5": "1"}}, "logit_bias.5"),
        ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl"),
    ],
)
def test_place_of_a_fault_is_named(fields, param):
    assert refusal(**fields) == param


def test_missing_fields_are_named():
    for body, param in (({"messages": [USER]}, "model"), ({"model": "m"}, "messages")):
        with pytest.raises(ApiError) as caught:
            parse_chat_request(body)
        assert caught.value.param == param


def test_message_says_what_is_possible_and_nothing_of_the_value():
    with pytest.raises(ApiError, match=r"^stop: .*string or .*list") as caught:
        parse_chat_request({"model": "m", "messages": [USER], "stop": 12345})
    assert "12345" not in str(caught.value)


def test_null_is_absent_and_unknown_fields_are_ignored():
    optional = {
        name: None
        for name, field in type(
            parse_chat_request({"model": "m", "messages": [USER]})
        ).model_fields.items()
        if not field.is_required()
    }
    parse_chat_request({"model": "m", "messages": [USER], "unheard_of": 1, **optional})


def test_edges_of_ranges_are_possible():
    chat = parse_chat_request(
        {
            "model": "m",
            "messages": [USER],
            "temperature": 2,
            "top_p": 0,
            "top_k": -1,
            "presence_penalty": -2,
            "seed": 2**64 - 1,
            "max_tokens": 0,
            "stop": ["a", "b", "c", "d"],
        }
    )
    assert chat.temperature == 2.0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [1] * 500_000}, "messages[0]"),
        (
            {"messages": [{"role": "user", "content": [1] * 500_000}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user"}], "tools": [1] * 500_000}, "tools[0]"),
    ],
)
def test_a_list_of_faults_costs_no_more_than_the_first(fields, param):
    started = time.process_time()
    with pytest.raises(ApiError) as caught:
        parse_chat_request({"model": "m", **fields})
    assert time.process_time() - started < 0.5
    assert caught.value.param == param
    assert str(caught.value) == f"{param}: should be an object"
