"""Chat templates: conventions, failures and bounds."""

from __future__ import annotations

import time

import pytest

from ninfer_runtime.errors import RequestError, RequestErrorKind, StartupError
from ninfer_runtime.text import template as template_module
from ninfer_runtime.text.template import ChatTemplate


def test_blocks_leave_no_white_space():
    source = "  {% if true %}\na\n  {% endif %}\nb\n"
    assert ChatTemplate(source).render({}) == "a\nb"


def test_loops_can_be_left():
    source = "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}"
    source += "{% if i == 3 %}{% break %}{% endif %}{% endfor %}"
    assert ChatTemplate(source).render({}) == "023"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", '{"b": "<é\'&>", "a": [1, 2.0]}'),
        ("sort_keys=true, separators=(',', ':')", '{"a":[1,2.0],"b":"<é\'&>"}'),
        ("ensure_ascii=true", '{"b": "<\\u00e9\'&>", "a": [1, 2.0]}'),
        ("indent=1", '{\n "b": "<é\'&>",\n "a": [\n  1,\n  2.0\n ]\n}'),
    ],
)
def test_json_is_written_as_python_writes_it(arguments, text):
    template = ChatTemplate(f"{{{{ value | tojson({arguments}) }}}}")
    assert template.render({"value": {"b": "<é'&>", "a": [1, 2.0]}}) == text


def test_the_date_is_that_of_today():
    assert ChatTemplate("{{ strftime_now('%Y') }}").render({}) in {
        str(time.localtime().tm_year),
        str(time.localtime().tm_year - 1),
    }


def test_a_syntax_error_names_the_line():
    with pytest.raises(StartupError, match=r"x\.jinja: line 2") as caught:
        ChatTemplate("a\n{% if %}", path="x.jinja")
    assert caught.value.code == "chat_template"


def failure(source, **variables) -> str:
    with pytest.raises(RequestError) as caught:
        ChatTemplate(source).render(variables)
    assert caught.value.kind == RequestErrorKind.INVALID_PROMPT
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ missing.name }}", "missing"),
        ("{{ 'a' + 1 }}", "str"),
        ("{{ [1][5].x }}", "no element"),
        ("{{ {1: 2} | tojson }}", "not a string"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
    ],
)
def test_a_failing_template_is_an_invalid_prompt(source, named):
    assert named in failure(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ options.clear() }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    ],
)
def test_the_sandbox_holds(source):
    messages, options = [1], {"a": 1}
    try:
        text = ChatTemplate(source).render({"messages": messages, "options": options})
    except RequestError:
        text = ""
    assert "class" not in text
    assert "globals" not in text
    assert (messages, options) == ([1], {"a": 1})


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ 'x' * 10 ** 9 }}",
        "{{ 10 ** 9 * [1] }}",
        "{{ 9 ** 999999999 }}",
        "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    ],
)
def test_large_values_are_not_made(source):
    started = time.monotonic()
    failure(source)
    assert time.monotonic() - started < 1


def test_small_products_and_powers_work():
    template = ChatTemplate(
        "{{ 'ab' * 2 }}{{ 3 * 'c' }}{{ 2 ** 10 }}{{ 3 * 4 }}{{ 'a' + 'b' }}{{ 1 + 2 }}"
    )
    assert template.render({}) == "ababccc102412ab3"


def test_endless_output_is_cut_off(monkeypatch):
    monkeypatch.setattr(template_module, "MAX_CHARACTERS", 1000)
    source = "{% for i in range(999) %}{% for j in range(99999) %}xx{% endfor %}{% endfor %}"
    assert "exceeds 1000 characters" in failure(source)
