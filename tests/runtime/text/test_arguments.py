"""What the model's text means under a tool's schema."""

from __future__ import annotations

import json

import pytest

from ninfer_runtime.engine.request import Tool
from ninfer_runtime.text.json_values import write_json
from ninfer_runtime.text.parsers.arguments import (
    OMITTED,
    parameter_types,
    strip_framing,
    typed_value,
)


def typed(text, *types):
    return typed_value(text, frozenset(types) or None)


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("5", ["string"], "5"),
        ("", ["string"], ""),
        (" a ", ["string"], " a "),
        ("null", ["string", "null"], "null"),
        ("5", ["integer", "string"], "5"),
        ("", ["integer"], OMITTED),
        (" \n", ["object"], OMITTED),
        ("True", ["boolean"], True),
        ("FALSE", ["boolean"], False),
        ("true", ["boolean", "null"], True),
        ("null", ["boolean", "null"], None),
        ("5", ["integer"], 5),
        ("-7", ["number"], -7),
        ("123456789012345678901234567890", ["integer"], 123456789012345678901234567890),
        ('{"b":1,"a":[2]}', ["object"], {"b": 1, "a": [2]}),
        ("null", ["null"], None),
        # Text that does not fit keeps its JSON type, or stays text.
        ("5", ["boolean"], 5),
        ("true", ["integer"], True),
        ("True", ["integer"], "True"),
        ("five", ["integer"], "five"),
        ("[1, 2", ["array"], "[1, 2"),
        ("NaN", ["number"], "NaN"),
        ('"\\ud800"', ["object"], '"\\ud800"'),
        ("[" * 100_000, ["array"], "[" * 100_000),
        # Nothing is known.
        ("5", [], 5),
        ("", [], ""),
        ("True", [], "True"),
        ('"a"', [], "a"),
    ],
)
def test_values_have_the_type_that_the_schema_admits(text, types, value):
    result = typed(text, *types)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize("spelling", ["1.0", "1.10", "1e3", "-0", "-0.0", "1E400", "0.1", "12"])
def test_numbers_keep_their_spelling(spelling):
    assert write_json(typed(spelling, "number")) == spelling
    assert write_json(typed(f'{{"a":[{spelling}]}}', "object")) == f'{{"a":[{spelling}]}}'


SCHEMA = {
    "type": "object",
    "properties": {
        "plain": {"type": "integer"},
        "list": {"type": ["integer", "null"]},
        "any": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "one": {"oneOf": [{"type": ["number", "boolean"]}]},
        "both": {"anyOf": [{"type": "string"}], "oneOf": [{"type": "null"}]},
        "partly": {"anyOf": [{"type": "string"}, {"enum": [1]}]},
        "empty": {"anyOf": []},
        "odd": {"type": "date"},
        "none": {"description": "anything"},
        "local": {"$ref": "#/$defs/flag"},
        "twice": {"$ref": "#/$defs/again"},
        "remote": {"$ref": "http://example.org/x"},
        "lost": {"$ref": "#/$defs/no/such"},
        "true": True,
    },
    "$defs": {"flag": {"type": "boolean"}, "again": {"$ref": "#/$defs/flag"}},
}


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("plain", {"integer"}),
        ("list", {"integer", "null"}),
        ("any", {"string", "null"}),
        ("one", {"number", "boolean"}),
        ("local", {"boolean"}),
        *((name, None) for name in ("both", "partly", "empty", "odd", "none", "twice")),
        *((name, None) for name in ("remote", "lost", "true", "undeclared")),
    ],
)
def test_types_come_from_the_schema(name, types):
    assert parameter_types(SCHEMA, name) == types


@pytest.mark.parametrize("schema", [None, {}, {"properties": []}, {"properties": {"a": None}}])
def test_a_schema_without_properties_tells_nothing(schema):
    assert parameter_types(schema, "a") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("\na\n", "a"),
        ("\r\na\r\n", "a"),
        ("a", "a"),
        ("\n\na \n\n", "\na \n"),
        ("\n", ""),
        ("", ""),
    ],
)
def test_one_newline_at_each_end_is_framing(text, value):
    assert strip_framing(text) == value


def call_with(play, tool, body):
    text = f"<tool_call>\n<function={tool.name}>\n{body}</function>\n</tool_call>"
    whole, single = play([text], tools=(tool,)), play(list(text), tools=(tool,))
    assert whole.calls == single.calls
    assert whole.session.content == single.session.content == ""
    ((_, arguments),) = whole.calls
    return write_json(arguments)


def test_report_d01_python_booleans_are_booleans(play):
    tool = Tool(
        "find",
        parameters={
            "type": "object",
            "properties": {"deep": {"type": "boolean"}, "name": {"type": "string"}},
        },
    )
    body = "<parameter=deep>\nTrue\n</parameter>\n<parameter=name>\nLevel\n</parameter>\n"
    assert call_with(play, tool, body) == '{"deep":true,"name":"Level"}'


def test_report_d08_booleans_are_not_strings(play):
    tool = Tool("run", parameters={"properties": {"bg": {"type": "boolean"}}})
    assert call_with(play, tool, "<parameter=bg>\ntrue\n</parameter>\n") == '{"bg":true}'


def test_arguments_keep_the_order_of_the_model(play):
    body = "<parameter=z>\n1\n</parameter>\n<parameter=a>\n[2]\n</parameter>\n"
    assert call_with(play, Tool("t"), body) == '{"z":1,"a":[2]}'


def test_an_empty_value_without_an_empty_type_is_left_out(play):
    tool = Tool("t", parameters={"properties": {"n": {"type": "integer"}}})
    assert json.loads(call_with(play, tool, "<parameter=n>\n\n</parameter>\n")) == {}
