"""Attacks on the JSON reader: everything that is not plain JSON is an error of one kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_format import ArtifactError, open_artifact
from ninfer_format.container.json_text import check_open_value, dump_json, parse_json


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"[" * 200_000 + b"]" * 200_000, id="deep arrays"),
        pytest.param(b'{"a":' * 200_000 + b"1" + b"}" * 200_000, id="deep objects"),
        pytest.param(b'{"a":' + b"9" * 5000 + b"}", id="5000-digit integer"),
        pytest.param(b'{"a":-' + b"9" * 5000 + b"}", id="negative 5000-digit integer"),
        pytest.param(b'{"a":1e999}', id="overflow to infinity"),
        pytest.param(b'{"a":-1e999}', id="overflow to minus infinity"),
        pytest.param(b'{"a":NaN}', id="NaN"),
        pytest.param(b'{"a":Infinity}', id="Infinity"),
        pytest.param(b'{"a":-Infinity}', id="-Infinity"),
        pytest.param(b'\xef\xbb\xbf{"a":1}', id="byte-order mark"),
        pytest.param(b'{"a":"\xff"}', id="not UTF-8"),
        pytest.param(b'{"a":"\xed\xa0\x80"}', id="surrogate as UTF-8"),
        pytest.param(b'{"a":1,"\\u0061":2}', id="duplicate after unescaping"),
        pytest.param(b'{"b":[{"a":1,"a":1}]}', id="nested duplicate"),
        pytest.param(b'{"a":1}{}', id="two values"),
        pytest.param(b'{"a":1}\0', id="trailing NUL"),
        pytest.param(b'{"a":1,}', id="trailing comma"),
        pytest.param(b"{'a':1}", id="single quotes"),
        pytest.param(b'{"a":01}', id="leading zero"),
        pytest.param(b'{"a":+1}', id="plus sign"),
        pytest.param(b'{"a":.5}', id="no integer part"),
        pytest.param(b'{"a":"\n"}', id="control character in a string"),
        pytest.param(b'{"a":1 /* */}', id="comment"),
        pytest.param(b"", id="nothing"),
        pytest.param(b'{"a":\xc2\xa01}', id="other white space"),
    ],
)
def test_text_is_refused(text: bytes) -> None:
    with pytest.raises(ArtifactError) as raised:
        parse_json(text)
    assert raised.value.category == "json"


def test_plain_json_keeps_its_values_and_order() -> None:
    text = b' {"b":[1,-0,2.5e3,true,null,"\\ud83d\\ude00\\u0000"],"a":{"":{}}}\n\t\r '
    value = parse_json(text)
    assert value == {"b": [1, 0, 2500.0, True, None, "\U0001f600\0"], "a": {"": {}}}
    assert list(value) == ["b", "a"]


def test_long_but_tolerable_integers_are_read() -> None:
    assert parse_json(b"[" + b"7" * 1000 + b"]") == [int("7" * 1000)]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(["\ud800"], id="string"),
        pytest.param({"\udfff": 1}, id="member name"),
        pytest.param({"a": [{"b": "x\udc00y"}]}, id="deep string"),
    ],
)
def test_lone_surrogates_in_open_values_are_refused(value: Any) -> None:
    with pytest.raises(ArtifactError, match="lone surrogate") as raised:
        check_open_value(value, "config")
    assert raised.value.category == "json"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_open_values_may_be_nested_to_the_limit_only() -> None:
    check_open_value(nested(127), "config")
    with pytest.raises(ArtifactError, match="config is nested deeper than 128") as raised:
        check_open_value(nested(128), "config")
    assert raised.value.category == "json"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, "\ud800", object()])
def test_values_that_json_cannot_express_are_not_written(value: Any) -> None:
    with pytest.raises(ArtifactError) as raised:
        dump_json({"a": value})
    assert raised.value.category == "json"


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


@given(JSON_VALUES)
def test_what_is_written_is_read_back(value: Any) -> None:
    assert parse_json(dump_json(value)) == value


@given(JSON_VALUES)
def test_plain_json_is_read_like_the_standard_parser(value: Any) -> None:
    text = json.dumps(value).encode()
    assert parse_json(text) == json.loads(text)


def entry_with_config(config: bytes) -> bytes:
    text = (
        b'{"components":{"text":{"config":' + config + b"}},"
        b'"objects":[{"id":"r","encoding":"raw_bytes_v1","offset":0,"bytes":1,"kind":"resource"}],'
        b'"bindings":{},"uses":[],"files":[{"path":null,"payload_bytes":1}]}'
    )
    start = -(-(32 + len(text)) // 4096) * 4096
    header = b"NINFER\0\3" + len(text).to_bytes(8, "little") + bytes(16)
    return (header + text).ljust(start, b"\0") + b"x"


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(b'{"a":' + b"[" * 500 + b"]" * 500 + b"}", id="deep"),
        pytest.param(b'{"a":"\\ud800"}', id="lone surrogate"),
        pytest.param(b'{"a":1e400}', id="overflow"),
        pytest.param(b'{"a":' + b"1" * 4500 + b"}", id="long integer"),
    ],
)
def test_attacks_inside_config_are_json_errors_of_the_file(config: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.ninfer"
    path.write_bytes(entry_with_config(config))
    with pytest.raises(ArtifactError) as raised:
        open_artifact(path)
    assert raised.value.category == "json"
    assert raised.value.path == str(path)


def test_the_frame_of_these_attacks_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "x.ninfer"
    path.write_bytes(entry_with_config(b'{"a":[1,2]}'))
    assert open_artifact(path).directory.components["text"].config == {"a": [1, 2]}
