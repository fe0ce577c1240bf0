"""Chats and raw prompts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ninfer_runtime.engine.request import (
    Message,
    PromptInput,
    TextPart,
    Tool,
    ToolCall,
)
from ninfer_runtime.errors import RequestError, RequestErrorKind
from ninfer_runtime.text.frontend import Frontend
from ninfer_runtime.text.json_values import read_json

UNKNOWN: Any = "<|im_end|>"
HELLO = (Message("user", "hello"),)


def with_template(resources, template) -> Frontend:
    return Frontend({**resources, "chat_template.jinja": template.encode()})


def refusal(frontend, prompt) -> str:
    with pytest.raises(RequestError) as caught:
        frontend.prepare(prompt)
    assert caught.value.kind == RequestErrorKind.INVALID_PROMPT
    return str(caught.value)


def test_a_raw_prompt_is_taken_as_it_is(frontend):
    text = "<|im_start|>user\n<think>\n"
    prepared = frontend.prepare(PromptInput(raw_prompt=text))
    assert prepared.text == text
    assert list(prepared.token_ids) == frontend.tokenizer.encode_with_controls(text)
    # One channel: nothing is split off.
    assert not prepared.starts_in_reasoning
    assert prepared.tools == ()


def test_raw_ids_are_taken_as_they_are(frontend):
    assert frontend.prepare(PromptInput(raw_prompt=(1, 4095))).token_ids == (1, 4095)


def test_a_configured_first_token_precedes_raw_text(resources):
    config = b'{"add_bos_token": true, "bos_token": {"content": "<|endoftext|>"}}'
    frontend = Frontend({**resources, "tokenizer_config.json": config})
    assert frontend.prepare(PromptInput(raw_prompt="!")).token_ids == (4083, 0)
    assert frontend.prepare(PromptInput(raw_prompt=(0,))).token_ids == (0,)


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        (PromptInput(), "no messages"),
        (PromptInput(raw_prompt=""), "empty"),
        (PromptInput(raw_prompt=()), "empty"),
        (PromptInput(raw_prompt=(4096,)), r"4096 is outside 0\.\.4095"),
        (PromptInput(raw_prompt=(-1,)), "-1 is outside"),
        (PromptInput(raw_prompt=(True,)), "True is outside"),
        (PromptInput(messages=HELLO, raw_prompt="x"), "both"),
        (PromptInput(messages=(Message(UNKNOWN, "x"),)), "message 0: role"),
        (PromptInput(messages=HELLO, template_options={"messages": []}), "'messages'"),
        (PromptInput(messages=HELLO, template_options={"eos_token": "x"}), "'eos_token'"),
        (PromptInput(messages=(Message("user", "\ud800"),)), "surrogate"),
    ],
)
def test_prompts_that_make_no_sense_are_refused(frontend, prompt, named):
    assert re.search(named, refusal(frontend, prompt))


@pytest.mark.parametrize(
    ("options", "thinks"),
    [
        ({}, True),
        ({"enable_thinking": True}, True),
        ({"enable_thinking": False}, False),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "high"}, True),
        ({"template_options": {"enable_thinking": False}}, False),
        ({"add_generation_prompt": False}, False),
    ],
)
def test_whether_the_output_starts_with_thoughts_is_read_from_the_prompt(frontend, options, thinks):
    assert frontend.prepare(PromptInput(messages=HELLO, **options)).starts_in_reasoning == thinks


def test_a_marker_in_an_earlier_turn_opens_nothing(resources):
    template = "use <think> tags<|im_end|>{{ messages[0].content }}"
    frontend = with_template(resources, template)
    assert not frontend.prepare(PromptInput(messages=HELLO)).starts_in_reasoning
    frontend = with_template(resources, template + "<|im_start|><think>")
    assert frontend.prepare(PromptInput(messages=HELLO)).starts_in_reasoning


def test_options_reach_the_template(resources):
    template = (
        "{{ reasoning_effort }} {{ preserve_thinking }} {{ extra.a }} {{ eos_token }} "
        "{{ enable_thinking is defined }} {{ tools is none }} {{ pad_token }} {{ bos_token }}"
    )
    prompt = PromptInput(
        messages=HELLO,
        reasoning_effort="low",
        preserve_thinking=False,
        template_options={"extra": {"a": None}},
    )
    text = with_template(resources, template).prepare(prompt).text
    assert text == "low False None <|im_end|> False True <|endoftext|> "


def test_parts_are_joined_without_a_separator(frontend):
    parts = (TextPart("one"), TextPart("two"))
    assert "user\nonetwo<" in frontend.prepare(PromptInput(messages=(Message("user", parts),))).text


@pytest.mark.parametrize(
    "answer",
    [
        Message("assistant", "<think>\nwhy\n</think>\n\nbecause"),
        Message("assistant", "why\n</think>\n\nbecause"),
        Message("assistant", "because", reasoning_content="why"),
    ],
)
def test_thoughts_in_an_earlier_answer_are_rendered_as_thoughts(frontend, answer):
    prompt = PromptInput(messages=(*HELLO, answer), add_generation_prompt=False)
    prepared = frontend.prepare(prompt)
    assert prepared.text.endswith("assistant\n<think>\nwhy\n</think>\n\nbecause<|im_end|>\n")
    open_id, close_id = map(frontend.tokenizer.token_id, ("<think>", "</think>"))
    assert prepared.token_ids.count(open_id) == prepared.token_ids.count(close_id) == 1


def test_thoughts_of_the_user_are_text(frontend):
    prompt = PromptInput(messages=(Message("user", "a</think> b"),))
    assert "user\na</think> b<|im_end|>" in frontend.prepare(prompt).text


def test_arguments_reach_the_template_in_order_and_as_spelled(frontend):
    arguments = read_json('{"z":1.10,"a":{"y":1e3,"x":[true,null]},"s":"1.0"}')
    answer = Message("assistant", None, tool_calls=(ToolCall("", "f", arguments),))
    text = frontend.prepare(PromptInput(messages=(*HELLO, answer))).text
    assert text.split("<tool_call>\n")[1].startswith(
        "<function=f>\n<parameter=z>\n1.10\n</parameter>\n"
        '<parameter=a>\n{"y": 1e3, "x": [true, null]}\n</parameter>\n'
        "<parameter=s>\n1.0\n</parameter>\n</function>"
    )


def test_tools_are_written_in_the_order_of_the_schema(frontend):
    tool = Tool("f", "does é", {"type": "object", "b": 1, "a": 2})
    text = frontend.prepare(PromptInput(messages=HELLO, tools=(tool, Tool("g")))).text
    assert (
        '{"type": "function", "function": {"name": "f", "description": "does é", '
        '"parameters": {"type": "object", "b": 1, "a": 2}}}\n'
        '{"type": "function", "function": {"name": "g", '
        '"parameters": {"type": "object", "properties": {}}}}\n'
    ) in text


STRICT = (
    "{% for m in messages %}"
    "{% if m.role not in ('system', 'user') %}{{ raise_exception('no role ' + m.role) }}{% endif %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('not first') }}{% endif %}"
    "{{ m.role }}={{ m.content }};{% endfor %}"
)


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        (("system", "user"), "system=0;user=1;"),
        (("developer", "user"), "system=0;user=1;"),
        (("system", "developer", "user"), "system=0\n\n1;user=2;"),
        (("user", "system", "user"), "user=0;user=[system]: 1;user=2;"),
        (("developer", "user", "developer"), "system=0;user=1;user=[system]: 2;"),
    ],
)
def test_instructions_are_placed_where_a_template_accepts_them(resources, roles, text):
    messages = tuple(Message(role, str(index)) for index, role in enumerate(roles))
    assert with_template(resources, STRICT).prepare(PromptInput(messages=messages)).text == text


def test_the_first_refusal_of_a_template_is_reported(resources):
    messages = (Message("developer", "a"), Message("assistant", "b"))
    message = refusal(with_template(resources, STRICT), PromptInput(messages=messages))
    assert message.endswith("no role developer")


def test_an_empty_rendering_is_refused(resources):
    assert "empty prompt" in refusal(with_template(resources, ""), PromptInput(messages=HELLO))


def test_without_a_template_only_raw_prompts_work(resources):
    bare = {"tokenizer.json": resources["tokenizer.json"]}
    bare["generation_config.json"] = resources["generation_config.json"]
    frontend = Frontend(bare)
    assert "no chat template" in refusal(frontend, PromptInput(messages=HELLO))
    assert frontend.prepare(PromptInput(raw_prompt="!")).token_ids == (0,)
