"""Attacks on the JSON reader: everything that is not plain JSON is an error of one kind."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_format import ArtifactError, open_artifact
from ninfer_format.container.json_text import (
    check_open_value,
    dump_json,
    estimate_memory,
    parse_json,
)


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


def entry_with(config: str = "{}", bindings: str = "", uses: str = "") -> bytes:
    text = (
        '{"components":{"text":{"config":' + config + "}},"
        '"objects":[{"id":"w","kind":"tensor","shape":[],"format":"a","layout":"b","offset":0,'
        '"bytes":1}],"bindings":{"p":{"object":"w"}' + bindings + '},"uses":[' + uses + "],"
        '"files":[{"path":null,"payload_bytes":1}]}'
    ).encode("utf-8", "surrogatepass")
    start = -(-(32 + len(text)) // 4096) * 4096
    header = b"NINFER\0\3" + len(text).to_bytes(8, "little") + bytes(16)
    return (header + text).ljust(start, b"\0") + b"x"


@pytest.mark.parametrize(
    "config",
    [
        pytest.param('{"a":' + "[" * 500 + "]" * 500 + "}", id="deep"),
        pytest.param('{"a":"\\ud800"}', id="lone surrogate"),
        pytest.param('{"a":"\ud800"}', id="surrogate as UTF-8"),
        pytest.param('{"a":1e400}', id="overflow"),
        pytest.param('{"a":' + "1" * 4500 + "}", id="long integer"),
    ],
)
def test_attacks_inside_config_are_json_errors_of_the_file(config: str, tmp_path: Path) -> None:
    path = tmp_path / "x.ninfer"
    path.write_bytes(entry_with(config))
    with pytest.raises(ArtifactError) as raised:
        open_artifact(path)
    assert raised.value.category == "json"
    assert raised.value.path == str(path)


def test_the_frame_of_these_attacks_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "x.ninfer"
    path.write_bytes(entry_with('{"a":[1,2]}'))
    assert open_artifact(path).directory.components["text"].config == {"a": [1, 2]}


# --- memory -------------------------------------------------------------------------------------


def repeated(unit: str | Callable[[int], str], num_chars: int) -> str:
    """Comma-separated values of about that many characters together."""
    first = unit if isinstance(unit, str) else unit(10_000)
    count = num_chars // (len(first) + 1)
    return ",".join(unit if isinstance(unit, str) else unit(index) for index in range(count))


BOMBS: dict[str, Callable[[int], bytes]] = {
    "empty arrays": lambda n: entry_with('{"a":[' + repeated("[]", n) + "]}"),
    "nested arrays": lambda n: entry_with('{"a":[' + repeated("[[[[[[]]]]]]", n) + "]}"),
    "empty objects": lambda n: entry_with('{"a":[' + repeated("{}", n) + "]}"),
    "small objects": lambda n: entry_with('{"a":[' + repeated('{"":0}', n) + "]}"),
    "integers": lambda n: entry_with('{"a":[' + repeated("999", n) + "]}"),
    "reals": lambda n: entry_with('{"a":[' + repeated("0.5", n) + "]}"),
    "strings": lambda n: entry_with('{"a":[' + repeated('"ab"', n) + "]}"),
    "wide strings": lambda n: entry_with('{"a":[' + repeated('"😀a"', n) + "]}"),
    "escaped strings": lambda n: entry_with(
        '{"a":[' + repeated('"\\ud83d\\ude00' + "a" * 80 + '"', n) + "]}"
    ),
    "one long string": lambda n: entry_with('{"a":"😀' + "a" * n + '"}'),
    "members": lambda n: entry_with("{" + repeated(lambda i: f'"{i:x}":0', n) + "}"),
    "bindings": lambda n: entry_with(
        bindings="," + repeated(lambda i: f'"{i:x}":{{"object":"w"}}', n)
    ),
    "parts": lambda n: entry_with(
        bindings=',"q":{"parts":[' + repeated('{"object":"w","range":[0,1]}', n) + "]}"
    ),
    "uses": lambda n: entry_with(
        uses=repeated(lambda i: f'{{"parameter":"p","input":"{i:x}"}}', n)
    ),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("num_chars", [500_000, 8_000_000])
def test_a_directory_takes_no_more_memory_than_its_file_and_64_mib(
    name: str, num_chars: int, tmp_path: Path
) -> None:
    path = tmp_path / "x.ninfer"
    path.write_bytes(BOMBS[name](num_chars))
    category = None
    tracemalloc.start()
    try:
        open_artifact(path).close()
    except ArtifactError as error:
        category = error.category
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert category in {None, "json"}
    assert category is None or num_chars > 10**6, "a short directory is read in any case"
    assert peak <= path.stat().st_size + 64 * 2**20


@pytest.mark.parametrize("name", BOMBS)
def test_the_estimate_of_the_memory_is_no_less_than_it_takes(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.ninfer"
    content = BOMBS[name](300_000)
    path.write_bytes(content)
    open_artifact(path).close()  # What stays in memory after the first time is not counted.
    tracemalloc.start()
    try:
        open_artifact(path).close()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    text = content[32 : 32 + int.from_bytes(content[8:16], "little")]
    assert peak < estimate_memory(text) + 50_000
