"""What the turns of a chat may hold, and what the engine gets of them."""

from typing import Any

import pytest

from ninfer_runtime.engine.request import Message, ToolCall
from ninfer_server.errors import ApiError
from ninfer_server.openai_chat.translate import translate
from ninfer_server.settings import ServerSettings

LENIENT = ServerSettings()
STRICT = ServerSettings(compatibility="strict")


def translated(*messages, settings=LENIENT):
    call = translate({"model": "m", "messages": list(messages)}, "m", settings)
    return call.prompt.messages, call.headers.get("x-ninfer-ignored")


def refused(*messages, settings=LENIENT):
    with pytest.raises(ApiError) as caught:
        translated(*messages, settings=settings)
    assert caught.value.status == 400
    return caught.value.wire_code, caught.value.param


def call(arguments, **changes):
    function = {"name": "f", "arguments": arguments}
    return {"id": "call_1", "type": "function", "function": function, **changes}


@pytest.mark.parametrize("role", ["system", "developer", "user"])
def test_instructions_and_questions_keep_their_role_and_place(role):
    messages, ignored = translated({"role": "user", "content": "a"}, {"role": role, "content": "b"})
    assert messages[1] == Message(role=role, content="b")
    assert ignored is None


def test_adjacent_text_parts_are_joined_without_a_separator():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {}}]
    assert translated({"role": "user", "content": parts})[0][0].content == "ab"


@pytest.mark.parametrize("role", ["tester", "", "USER", "assistants"])
def test_unknown_role_is_refused(role):
    assert refused({"role": role, "content": "x"}) == ("unsupported_role", "messages[0].role")


@pytest.mark.parametrize("role", ["system", "developer", "user"])
@pytest.mark.parametrize("message", [{}, {"content": None}])
def test_content_is_required(role, message):
    assert refused({"role": role, **message}) == (None, "messages[0].content")


@pytest.mark.parametrize("content", [None, "", []])
def test_assistant_may_say_nothing(content):
    messages, _ = translated(
        {
            "role": "assistant",
            "content": content,
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
        }
    )
    assert messages == (Message(role="assistant", content=""),)


def test_refusals_are_text():
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    messages, _ = translated({"role": "assistant", "content": parts, "refusal": "c"})
    assert messages[0].content == "abc"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thoughts_have_two_names(name):
    messages, _ = translated({"role": "assistant", "content": "a", name: "b"})
    assert messages[0].reasoning_content == "b"


def test_thoughts_under_both_names_must_agree():
    same = {"role": "assistant", "content": "a", "reasoning": "b", "reasoning_content": "b"}
    assert translated(same)[0][0].reasoning_content == "b"
    assert translated({**same, "reasoning": ""})[0][0].reasoning_content == "b"
    assert refused({**same, "reasoning": "c"})[0] == "conflicting_template_option"


def test_spoken_history_is_refused():
    assert refused({"role": "assistant", "content": "a", "audio": {"id": "x"}}) == (
        "assistant_history_not_supported",
        "messages[0].audio",
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"b": 1, "a": true}', {"b": 1, "a": True}),
        ({"b": 1}, {"b": 1}),
        ("", {}),
        (" \n", {}),
        (None, {}),
    ],
)
def test_arguments_reach_the_template_as_an_object(arguments, expected):
    messages, _ = translated({"role": "assistant", "tool_calls": [call(arguments)]})
    (tool_call,) = messages[0].tool_calls
    assert tool_call == ToolCall(id="call_1", name="f", arguments=expected)
    assert list(tool_call.arguments) == list(expected)
    assert messages[0].content is None


@pytest.mark.parametrize("arguments", ["[1]", "{", "5", "nonsense", '{"a": NaN}', '"\\ud800"'])
def test_arguments_that_are_no_object_are_refused(arguments):
    assistant = {"role": "assistant", "tool_calls": [call("{}"), call(arguments)]}
    assert refused({"role": "user", "content": "x"}, assistant) == (
        "invalid_tool_history",
        "messages[1].tool_calls[1].function.arguments",
    )


def test_spelling_of_numbers_survives_a_replay():
    messages, _ = translated({"role": "assistant", "tool_calls": [call('{"x":1.0,"y":1.10e5}')]})
    assert [str(value) for value in messages[0].tool_calls[0].arguments.values()] == [
        "1.0",
        "1.10e5",
    ]


def test_call_without_a_type_is_a_function():
    untyped = call("{}")
    del untyped["type"]
    assert translated({"role": "assistant", "tool_calls": [untyped]})[0][0].tool_calls
    assert refused({"role": "assistant", "tool_calls": [call("{}", type="custom")]})[0] == (
        "tool_type_not_supported"
    )


def test_legacy_call_comes_first_and_its_answer_needs_no_id():
    messages, _ = translated(
        {
            "role": "assistant",
            "function_call": {"name": "g", "arguments": "{}"},
            "tool_calls": [call("{}")],
        },
        {"role": "function", "name": "g", "content": "5"},
    )
    assert [c.name for c in messages[0].tool_calls] == ["g", "f"]
    assert messages[0].tool_calls[0].id == ""
    assert messages[1] == Message(role="tool", content="5")


def test_legacy_answer_needs_a_name():
    assert refused({"role": "function", "content": "5"}) == (None, "messages[0].name")
    for name in ("a b", "x" * 65):
        message = {"role": "function", "content": "5", "name": name}
        assert refused(message) == (None, "messages[0].name")


def test_answer_of_a_tool():
    messages, ignored = translated(
        {"role": "tool", "tool_call_id": "call_1", "content": "5", "name": "f"}
    )
    assert messages == (Message(role="tool", content="5", tool_call_id="call_1"),)
    assert ignored is None


def test_answer_of_a_tool_needs_its_id():
    for message in ({}, {"tool_call_id": None}):
        assert refused({"role": "tool", "content": "5", **message}) == (
            None,
            "messages[0].tool_call_id",
        )


def test_empty_answer_of_a_tool_is_reported_or_refused():
    message = {"role": "tool", "tool_call_id": "c", "content": None}
    messages, ignored = translated(message)
    assert messages[0].content == ""
    assert ignored == "messages.content"
    assert refused(message, settings=STRICT) == (None, "messages[0].content")


def test_names_of_participants_are_reported_or_refused():
    message = {"role": "user", "content": "x", "name": "Ada"}
    assert translated(message)[1] == "messages.name"
    assert refused(message, settings=STRICT) == ("message_name_not_supported", "messages[0].name")
    assert translated({**message, "name": ""}, settings=STRICT)[1] is None


@pytest.mark.parametrize("role", ["user", "system", "developer", "tool"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reasoning_content", "x"),
        ("reasoning", "x"),
        ("function_call", {"name": "f", "arguments": "{}"}),
        ("tool_calls", [call("{}")]),
    ],
)
def test_fields_of_the_assistant_belong_to_nobody_else(role, field, value):
    message = {"role": role, "content": "x"}
    if role == "tool":
        message["tool_call_id"] = "c"
    assert refused({**message, field: value}) == (None, f"messages[0].{field}")
    empty: Any = {"tool_calls": [], "function_call": None}.get(field, "")
    assert translated({**message, field: empty})[0][0].content == "x"


@pytest.mark.parametrize("role", ["user", "system", "assistant"])
def test_id_of_a_call_belongs_to_its_answer_only(role):
    message = {"role": role, "content": "x", "tool_call_id": "c"}
    assert refused(message) == (None, "messages[0].tool_call_id")
    assert translated({**message, "tool_call_id": ""})[0]


@pytest.mark.parametrize(
    ("role", "part"),
    [
        ("user", {"type": "image_url", "image_url": "https://x/y.png"}),
        ("user", {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}),
        ("tool", {"type": "image_url", "image_url": {"url": "x", "detail": "auto"}}),
        ("user", {"type": "video_url", "video_url": {"url": "x"}}),
    ],
)
def test_server_without_vision_says_so(role, part):
    message = {"role": role, "content": [{"type": "text", "text": "see"}, part]}
    if role == "tool":
        message["tool_call_id"] = "c"
    assert refused(message) == ("vision_disabled", "messages[0].content[1]")


@pytest.mark.parametrize(
    ("role", "part"),
    [
        ("user", {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}),
        ("user", {"type": "file", "file": {}}),
        ("user", {"type": "thinking"}),
        ("user", {"type": "refusal", "refusal": "no"}),
        ("assistant", {"type": "image_url", "image_url": "x"}),
        ("system", {"type": "image_url", "image_url": "x"}),
        ("assistant", {"type": "video_url", "video_url": "x"}),
    ],
)
def test_other_parts_are_refused(role, part):
    assert refused({"role": role, "content": [part]}) == (
        "modality_not_supported",
        "messages[0].content[0].type",
    )


@pytest.mark.parametrize("source", [None, 5, {}, {"url": 5}])
def test_media_need_a_url(source):
    part = {"type": "image_url", "image_url": source}
    assert refused({"role": "user", "content": [part]}) == (
        None,
        "messages[0].content[0].image_url",
    )


def test_image_detail_is_refused_in_strict_mode():
    part = {"type": "image_url", "image_url": {"url": "x", "detail": "high"}}
    assert refused({"role": "user", "content": [part]})[0] == "vision_disabled"
    assert refused({"role": "user", "content": [part]}, settings=STRICT)[0] == (
        "image_detail_not_supported"
    )


def test_text_part_needs_its_text():
    assert refused({"role": "user", "content": [{"type": "text"}]}) == (
        None,
        "messages[0].content[0].text",
    )


def test_cache_markers_are_hints_but_must_be_well_formed():
    part = {"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}
    assert translated({"role": "user", "content": [part]})[0][0].content == "x"
    part["prompt_cache_breakpoint"] = {"mode": "other"}
    assert refused({"role": "user", "content": [part]})[0] == "invalid_cache_breakpoint"
