import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_format.errors import ExitCode, UsageError
from ninfer_runtime.cli.messages import parse_messages
from ninfer_runtime.engine.request import Message, TextPart, Tool, ToolCall
from ninfer_runtime.text.json_values import write_json

USER = {"role": "user", "content": "hi"}
CALL = {"function": {"name": "f", "arguments": {"x": 1}}}


def parse(document):
    return parse_messages(json.dumps(document).encode(), "chat.json")


def refusal(document):
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    with pytest.raises(UsageError) as caught:
        parse_messages(data, "chat.json")
    assert caught.value.exit_code == ExitCode.USAGE
    message = str(caught.value)
    assert message.startswith("chat.json: ")
    return message


def test_an_array_is_a_chat():
    messages, tools = parse([{"role": "system", "content": "s"}, USER])
    assert messages == (Message("system", "s"), Message("user", "hi"))
    assert tools == ()


def test_an_object_holds_messages_and_tools():
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    tool = {"name": "f", "description": "does", "parameters": schema}
    wrapped = {"type": "function", "function": tool}
    for spelling in (tool, wrapped):
        messages, tools = parse({"messages": [USER], "tools": [spelling]})
        assert messages == (Message("user", "hi"),)
        assert tools == (Tool("f", "does", schema),)
        assert list(tools[0].parameters["properties"]) == ["b", "a"]


@pytest.mark.parametrize("role", ["system", "developer", "user"])
def test_roles(role):
    assert parse([{"role": role, "content": "x"}])[0][0].role == role


def test_parts_keep_their_order_and_need_no_type():
    content = [{"type": "text", "text": "a"}, {"text": ""}, {"text": "b"}]
    (message,) = parse([{"role": "user", "content": content}])[0]
    assert message.content == (TextPart("a"), TextPart(""), TextPart("b"))


def test_an_assistant_may_think_and_call():
    assistant = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
            {"name": "g", "arguments": {"b": 1, "a": 2}},
        ],
    }
    answer = {"role": "tool", "content": "4", "tool_call_id": "c1"}
    messages, _ = parse([USER, assistant, answer])
    assert messages[1].content is None
    assert messages[1].reasoning_content == "hm"
    assert messages[1].tool_calls == (
        ToolCall("c1", "f", {"x": 1}),
        ToolCall("call_1", "g", {"b": 1, "a": 2}),
    )
    assert list(messages[1].tool_calls[1].arguments) == ["b", "a"]
    assert messages[2].tool_call_id == "c1"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ([], "non-empty array"),
        ({"messages": []}, "non-empty array"),
        ({}, "'messages' is missing"),
        ({"messages": [USER], "model": "m"}, "unknown key 'model'"),
        ({"messages": [USER], "tools": {}}, "tools: expected an array, found an object"),
        ("hi", "non-empty array"),
        (3, "non-empty array"),
        ([USER, "hi"], "message 1: expected an object, found a string"),
        ([{"content": "x"}], "message 0: key 'role'"),
        ([{"role": "bot", "content": "x"}], "message 0: key 'role'"),
        ([{"role": ["user"], "content": "x"}], "message 0: key 'role'"),
        ([USER, {"role": "user"}], "message 1: key 'content' is missing"),
        ([{"role": "user", "content": None}], "message 0: key 'content' is empty"),
        ([{"role": "user", "content": ""}], "message 0: key 'content' is empty"),
        ([{"role": "user", "content": []}], "message 0: key 'content' is an empty array"),
        ([{"role": "user", "content": 3}], "message 0: key 'content' must be a string"),
        ([{"role": "user", "content": {"text": "x"}}], "found an object"),
        ([USER, {**USER, "name": "Ann"}], "message 1: unknown key 'name'"),
        ([{**USER, "reasoning_content": "x"}], "'reasoning_content' belongs to role assistant"),
        ([{**USER, "tool_calls": [CALL]}], "'tool_calls' belongs to role assistant"),
        ([{**USER, "tool_call_id": "c"}], "'tool_call_id' belongs to role tool"),
        ([{"role": "tool", "content": "x", "tool_call_id": 3}], "'tool_call_id' must be"),
        ([{"role": "user", "content": ["x"]}], "message 0, part 0: expected an object"),
        ([{"role": "user", "content": [{"type": "text"}]}], "part 0: key 'text'"),
        ([{"role": "user", "content": [{"type": "audio", "text": ""}]}], "part 0: key 'type'"),
        ([{"role": "user", "content": [{"text": "x", "bold": True}]}], "unknown key 'bold'"),
    ],
)
def test_what_is_no_chat_is_refused_with_its_place(document, expected):
    assert expected in refusal(document)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": "a.png"},
        {"type": "image_url", "image_url": {"url": "http://x/a.png"}},
        {"image_url": "a.png"},
        {"type": "video", "video": "a.mp4"},
        {"video_url": {"url": "a.mp4"}},
    ],
)
def test_media_are_refused_with_the_reason(part):
    message = refusal([USER, {"role": "user", "content": [{"text": "see"}, part]}])
    assert "message 1, part 1" in message
    assert "media are not supported" in message


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("f", "expected an object"),
        ({}, "key 'name'"),
        ({"name": "f"}, "key 'arguments'"),
        ({"name": "", "arguments": {}}, "key 'name'"),
        ({"name": "f", "arguments": "[1]"}, "key 'arguments' must be an object"),
        ({"name": "f", "arguments": "{"}, "key 'arguments': not JSON"),
        ({"name": "f", "arguments": '{"a": 1, "a": 2}'}, "'a' appears twice"),
        ({"name": "f", "arguments": {}, "index": 0}, "unknown key 'index'"),
        ({"function": "f"}, "expected an object"),
        ({"function": {"name": "f", "arguments": {}}, "name": "f"}, "unknown key 'name'"),
        ({"type": "custom", **CALL}, "key 'type' must be 'function'"),
    ],
)
def test_a_bad_call_is_refused_with_its_place(call, expected):
    message = refusal([{"role": "assistant", "content": None, "tool_calls": [CALL, call]}])
    assert "message 0, tool call 1" in message
    assert expected in message


@pytest.mark.parametrize("calls", [[], {}, "f", None])
def test_calls_must_be_a_non_empty_array(calls):
    assistant = {"role": "assistant", "content": "x", "tool_calls": calls}
    assert "key 'tool_calls' must be a non-empty array" in refusal([assistant])


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ("f", "expected an object"),
        ({"description": "d"}, "key 'name'"),
        ({"name": "f", "parameters": []}, "key 'parameters' must be an object"),
        ({"name": "f", "description": 3}, "key 'description'"),
        ({"name": "f", "strict": True}, "unknown key 'strict'"),
        ({"type": "web_search", "function": {"name": "f"}}, "key 'type'"),
    ],
)
def test_a_bad_tool_is_refused_with_its_place(tool, expected):
    message = refusal({"messages": [USER], "tools": [{"name": "ok"}, tool]})
    assert "tool 1" in message
    assert expected in message


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "not JSON"),
        (b"[", "not JSON: "),
        (b'[{"role": "user", "content": "x",}]', "line 1 column"),
        (b"\xff\xfe", "not UTF-8"),
        (b'[{"role": "user", "role": "user", "content": "x"}]', "'role' appears twice"),
        (b'[{"role": "user", "content": NaN}]', "NaN is not a JSON number"),
        (b'[{"role": "user", "content": "\\ud800"}]', "surrogate"),
        (b"[" * 100_000, "nested more than 96 levels deep"),
    ],
)
def test_damaged_files_are_refused(data, expected):
    assert expected in refusal(data)


def test_numbers_in_arguments_keep_their_spelling():
    huge = "1" * 5000
    data = (
        '[{"role": "assistant", "content": null, "tool_calls": [{"name": "f", "arguments": '
        f'{{"a": 1.10, "b": 1e400, "c": {huge}}}}}]}}]'
    )
    ((message,), _) = parse_messages(data.encode(), "chat.json")
    assert write_json(message.tool_calls[0].arguments) == f'{{"a":1.10,"b":1e400,"c":{huge}}}'


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["role", "content", "text", "tool_calls", "messages", "name"]), inner
        )
    ),
    max_leaves=20,
)


@given(json_values)
def test_any_json_is_a_chat_or_a_usage_error(document):
    try:
        messages, _ = parse(document)
    except UsageError:
        return
    assert messages
