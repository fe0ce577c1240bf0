"""Tool calls against a definition that sees the whole text at once."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ninfer_runtime.engine.request import Tool
from ninfer_runtime.text.parsers.tool_calls import ToolCallParser

TOOLS = (
    Tool("f", parameters={"type": "object", "properties": {"a": {"type": "string"}}}),
    Tool("find-it_2", parameters={"type": "object", "properties": {"n": {"type": "integer"}}}),
)
NAMES = {tool.name for tool in TOOLS}


def region(name="f", *parameters):
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def parse(pieces, tools=TOOLS, *, only_one=False):
    parser = ToolCallParser(tools, only_one=only_one)
    shown = "".join(map(parser.feed, pieces))
    rest, calls = parser.finish()
    return shown + rest, [(call.name, dict(call.arguments)) for call in calls]


# The definition, in the plainest form: try every start, and match brackets by counting.


def close_of(text, position):
    depth = 1
    for tag in re.compile(r"<parameter=[^<>\r\n]+>|</parameter>").finditer(text, position):
        depth += -1 if tag.group() == "</parameter>" else 1
        if depth == 0:
            return tag
    return None


def match_region(text, position):
    head = re.compile(r"<tool_call>\s*<function=([A-Za-z0-9_-]{1,128})>\s*").match(text, position)
    if head is None or head.group(1) not in NAMES:
        return None
    position, arguments = head.end(), {}
    while opening := re.compile(r"<parameter=([^<>\r\n]+)>").match(text, position):
        close = close_of(text, opening.end())
        if close is None or opening.group(1) in arguments:
            return None
        arguments[opening.group(1)] = text[opening.end() : close.start()]
        position = len(text) - len(text[close.end() :].lstrip())
    tail = re.compile(r"</function>\s*</tool_call>\s*").match(text, position)
    return None if tail is None else (head.group(1), list(arguments), tail.end())


def expected(text):
    for start in (match.start() for match in re.finditer("<tool_call>", text)):
        position, calls = start, []
        while found := match_region(text, position):
            calls.append(found[:2])
            position = found[2]
        if calls and position == len(text):
            return text[:start].rstrip(" \t\r\n"), calls
    return text, []


TAGS = [
    "<tool_call>",
    "</tool_call>",
    "<function=f>",
    "<function=other>",
    "</function>",
    "<parameter=a>",
]
NESTED = region("find-it_2", ("n", "<parameter=z>1</parameter>"))
REGIONS = [NESTED, region(), region("f", ("a", "v"))]
FRAGMENTS = st.sampled_from(
    [*TAGS, "<parameter=b>", "<parameter=>", "</parameter>", "<", "x", " ", "\n", *REGIONS]
)


@settings(deadline=None)
@given(fragments=st.lists(FRAGMENTS, max_size=14))
@example(fragments=["x ", "<tool_call>", " ", region()])
@example(fragments=[region(), "x", region()])
@example(fragments=["<tool_call>", "<function=f>", "<parameter=a>", region()])
@example(fragments=["<tool_call>", "<function=f>", "<parameter=a>", region(), "</parameter>"])
def test_any_partition_gives_what_the_definition_gives(fragments):
    text = "".join(fragments)
    content, calls = parse([text])
    assert parse(fragments) == parse(list(text)) == (content, calls)
    wanted = expected(text)
    assert (content, [(name, list(arguments)) for name, arguments in calls]) == wanted


def test_every_split_point_gives_the_same_calls():
    text = f"Sure. \n{region('f', ('a', 'é日'), ('b', '1'))}\n{region('find-it_2')}\n"
    whole = ("Sure.", [("f", {"a": "é日", "b": 1}), ("find-it_2", {})])
    for cut in range(len(text) + 1):
        assert parse([text[:cut], text[cut:]]) == whole


@pytest.mark.parametrize(
    "pieces",
    [
        ["<parameter=command>\nls\n</parameter>"],
        ["<parameter=comm", "and>\nls\n</parameter>"],
        list("<parameter=command>\nls\n</parameter>"),
    ],
)
def test_report_d09_pieces_of_any_size_give_the_same_arguments(pieces):
    pieces = ["<tool_call>\n<function=f>\n", *pieces, "\n</function>\n</tool_call>"]
    assert parse(pieces) == ("", [("f", {"command": "ls"})])


def test_report_d15_a_doubled_closing_tag_leaves_the_text_unchanged(play, caplog):
    text = (
        "<tool_call>\n<function=w>\n<parameter=p>\nx\n</parameter>\n</parameter>\n"
        "</function>\n</tool_call>"
    )
    for pieces in ([text], list(text)):
        played = play(pieces, tools=(Tool("w"),))
        assert played.session.content == played.text("content") == text
        assert played.calls == []
        assert played.session.finish_reason == "stop_token"
        # The log names the reason once and holds nothing that the model wrote.
        assert caplog.messages == ["a tool call stayed text: malformed_structure"]
        caplog.clear()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (region("g"), "undeclared_tool"),
        (region("f g"), "invalid_tool_name"),
        (region("n" * 129), "invalid_tool_name"),
        (region("f", ("a", "1"), ("a", "2")), "duplicate_parameter"),
        (region("f", ("a", "<parameter=b>")), "malformed_structure"),
        (region("f", ("", "1")), "malformed_structure"),
        (region() + " done", "trailing_content"),
        ("<tool_call>\n<function=f>\n</tool_call>", "malformed_structure"),
        ("<tool_call>\n<function=f</function>\n</tool_call>", "invalid_tool_name"),
        ("<tool_call>\n<function=f>\ntext</function>\n</tool_call>", "malformed_structure"),
        (region()[:-1], "malformed_structure"),
        ("<tool_call>", "malformed_structure"),
    ],
)
def test_faulty_calls_are_text(text, reason):
    parser = ToolCallParser(TOOLS)
    shown = parser.feed(text)
    rest, calls = parser.finish()
    assert (shown + rest, calls) == (text, ())
    assert parser.refusal == reason


def test_values_may_hold_any_markup_that_is_balanced():
    value = f"<parameter=q>1</parameter> {region('no-such')} <function=x> </function>"
    assert parse([region("f", ("a", value))]) == ("", [("f", {"a": value})])


def test_a_quoted_example_before_calls_is_content():
    text = f"Write `<tool_call>` like {region()} and then:\n"
    assert parse([text + region("f", ("a", "v"))]) == (text.rstrip(), [("f", {"a": "v"})])


def test_text_flows_until_a_call_may_begin():
    parser = ToolCallParser(TOOLS)
    assert parser.feed("plain text ") == "plain text"
    assert parser.feed("<to") == ""
    assert parser.feed("morrow> \n") == " <tomorrow>"
    assert parser.feed("<tool_call>\n<func") == ""
    assert parser.feed("y>") == " \n<tool_call>\n<funcy>"
    assert parser.finish() == ("", ())


def test_a_refuted_call_is_released_at_once():
    parser = ToolCallParser(TOOLS)
    assert parser.feed("<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n") == ""
    assert parser.feed("</parameter>") != ""


def test_many_openings_take_time_in_proportion():
    # Reading every candidate to its end would take hours.
    nested = "<tool_call><function=f><parameter=a>" * 20_000
    assert parse([nested]) == (nested, [])
    closed = nested + "</parameter>" * 20_000 + "</tool_call>"
    assert parse([closed]) == (closed, [])
    repeated = region() * 20_000 + "x"
    assert parse([repeated]) == (repeated, [])


@pytest.mark.parametrize("behind", ["", "\n", " more", f"\n{region('find-it_2')}", "<tool_call>"])
def test_only_call_ends_the_content_in_any_partition(behind):
    before = f"<tool_call>no</tool_call> {NESTED}"
    text = before + behind
    whole = parse([text], only_one=True)
    assert whole == ("<tool_call>no</tool_call>", parse([NESTED])[1])
    assert parse(text, only_one=True) == whole
    parser = ToolCallParser(TOOLS, only_one=True)
    parser.feed(before[:-1])
    assert not parser.is_full
    parser.feed(before[-1])
    assert parser.is_full


def test_only_call_in_an_unfinished_value_is_one_call():
    text = f"<tool_call><function=f><parameter=a>{region()}{region()}"
    assert parse([text], only_one=True)[1] == [("f", {})]
    assert len(parse([text])[1]) == 2
