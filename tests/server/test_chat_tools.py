"""Declared functions and the choice among them."""

import pytest

from ninfer_runtime.engine.request import Tool
from ninfer_server.errors import ApiError
from ninfer_server.openai_chat.translate import translate
from ninfer_server.settings import ServerSettings

LENIENT = ServerSettings()
STRICT = ServerSettings(compatibility="strict")


def function(name, **changes):
    return {"type": "function", "function": {"name": name, **changes}}


A, B = function("a"), function("b")


def translated(settings=LENIENT, **fields):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    call = translate(body, "m", settings)
    return call.prompt.tools, call.headers.get("x-ninfer-ignored")


def names(**fields):
    return [tool.name for tool in translated(**fields)[0]]


def refused(settings=LENIENT, **fields):
    with pytest.raises(ApiError) as caught:
        translated(settings, **fields)
    assert caught.value.status == 400
    return caught.value.wire_code, caught.value.param


def test_schema_keeps_its_order():
    parameters = {"type": "object", "properties": {"z": {"type": "string"}, "a": {}}, "x-y": 1}
    tools, _ = translated(tools=[function("f", description="d", parameters=parameters)])
    assert tools == (Tool(name="f", description="d", parameters=parameters),)
    assert list(tools[0].parameters) == ["type", "properties", "x-y"]
    assert list(tools[0].parameters["properties"]) == ["z", "a"]


@pytest.mark.parametrize("tools", [None, []])
@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_no_tools_are_fine(tools, choice):
    assert names(tools=tools, tool_choice=choice) == []


@pytest.mark.parametrize("name", ["", "a.b", "a b", "ä", "x" * 65, "a\n"])
def test_bad_name_is_shown_with_its_length(name):
    with pytest.raises(ApiError, match=f"has {len(name)} characters") as caught:
        translated(tools=[function(name)])
    assert caught.value.wire_code == "invalid_tool_name"
    assert caught.value.param == "tools[0].function.name"


def test_longest_name_is_possible():
    assert names(tools=[function("x" * 64)]) == ["x" * 64]


def test_same_name_twice_is_refused():
    assert refused(tools=[A, B, A]) == ("duplicate_tool_name", "tools[2].function.name")


def test_hosted_tools_are_skipped_and_reported_or_refused():
    tools = [A, {"type": "web_search"}, {"type": "mcp", "server_label": "x"}]
    assert translated(tools=tools) == (translated(tools=[A])[0], "tools")
    assert refused(STRICT, tools=tools) == ("tool_type_not_supported", "tools[1].type")


def test_tools_that_a_client_would_execute_are_refused():
    for kind in ("custom", "other"):
        assert refused(tools=[{"type": kind}]) == ("tool_type_not_supported", "tools[0].type")
    assert refused(tools=[{"type": "function"}]) == (None, "tools[0].function")


def test_strict_tools_cannot_be_promised():
    assert refused(tools=[function("f", strict=True)])[0] == "strict_tools_not_supported"
    assert names(tools=[function("f", strict=False), function("g", strict=None)]) == ["f", "g"]


def test_choice_none_hides_all_tools():
    assert names(tools=[A, B], tool_choice="none") == []


@pytest.mark.parametrize("is_nested", [True, False])
def test_choice_of_allowed_tools_filters_in_the_declared_order(is_nested):
    allowed = {"mode": "auto", "tools": [{"type": "function", "name": "a"}, function("z")]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    if not is_nested:
        choice = {"type": "allowed_tools", **allowed}
    assert names(tools=[function("z"), function("c"), A], tool_choice=choice) == ["z", "a"]


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "function": {"name": "a"}},
        {"type": "allowed_tools", "mode": "required", "tools": [A]},
    ],
)
def test_calls_cannot_be_forced(choice):
    assert refused(tools=[A], tool_choice=choice) == ("tool_choice_not_supported", "tool_choice")


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        "always",
        {},
        {"type": "other"},
        {"type": "function"},
        {"type": "function", "function": {"name": 5}},
        {"type": "function", "function": {"name": "b"}},
        {"type": "allowed_tools"},
        {"type": "allowed_tools", "mode": "auto", "tools": "a"},
        {"type": "allowed_tools", "mode": "other", "tools": []},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]},
        {"type": "allowed_tools", "mode": "auto", "tools": [B]},
    ],
)
def test_malformed_choice_is_refused(choice):
    tools = [] if choice == "required" else [A]
    assert refused(tools=tools, tool_choice=choice) == (None, "tool_choice")


@pytest.mark.parametrize(("given", "parallel"), [(None, True), (True, True), (False, False)])
def test_number_of_calls_can_be_limited_to_one(given, parallel):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [A]}
    call = translate({**body, "parallel_tool_calls": given}, "m", LENIENT)
    assert call.options.parallel_tool_calls is parallel
