"""JSON that is written back as it was read."""

from __future__ import annotations

import copy
import json
import pickle
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_runtime.text.json_values import MAX_DEPTH, SpelledNumber, read_json, write_json

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner),
    max_leaves=10,
)


@settings(deadline=None)
@given(value=VALUES, indent=st.none() | st.integers(0, 3), sort_keys=st.booleans())
def test_text_is_that_of_the_standard_library(value, indent, sort_keys):
    style = {"indent": indent, "sort_keys": sort_keys, "separators": (", ", ": ")}
    assert write_json(value, **style) == json.dumps(value, ensure_ascii=False, **style)
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert write_json(value) == compact


@settings(deadline=None)
@given(value=VALUES)
def test_reading_undoes_writing(value):
    assert read_json(write_json(value)) == value


@pytest.mark.parametrize(
    "text",
    ["1.0", "1.00", "1e5", "1E+5", "-0", "-0.0", "1e400", "0.1000000000000000055", "9" * 5000],
)
def test_the_spelling_of_numbers_survives(text):
    value = read_json(text)
    assert write_json(value) == text
    assert write_json(copy.deepcopy(value)) == text
    assert write_json(pickle.loads(pickle.dumps(value))) == text
    assert float(value) == float(text)


def test_ordinary_numbers_are_ordinary():
    assert type(read_json("1.5")) is float
    assert type(read_json("15")) is int
    assert str(SpelledNumber("1.50")) == "1.50"


@pytest.mark.parametrize(
    "text",
    ["", "NaN", "-Infinity", "True", "01", "1.", "{'a': 1}", '"\\ud800"', '{"\\udc00":1}', "1 2"],
)
def test_what_is_not_json_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        read_json(text)


def test_strictness_costs_little_more_than_parsing():
    text = json.dumps([{"role": "user", "content": "word " * 10}] * 20_000)
    plain, strict = (min(seconds(read, text) for _ in range(3)) for read in (json.loads, read_json))
    assert strict < 8 * plain


def seconds(read, text):
    started = time.process_time()
    read(text)
    return time.process_time() - started


def test_depth_is_bounded():
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert write_json(read_json(deepest)) == deepest
    for depth in (MAX_DEPTH + 1, 500, 100_000):
        with pytest.raises(ValueError, match="nested"):
            read_json("[" * depth + "]" * depth)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, {1, 2}, b"a"])
def test_what_has_no_json_form_is_refused(value):
    with pytest.raises((ValueError, TypeError)):
        write_json(value)


@pytest.mark.timeout(20)
def test_the_one_repeated_name_among_many_is_found_at_once():
    members = ",".join(f'"k{index}":0' for index in range(200_000))
    with pytest.raises(ValueError, match="'k199999' appears twice"):
        read_json("{" + members + ',"k199999":1}', unique_names=True)
