"""Prompts and outputs of the public implementation, for every golden chat."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ninfer_runtime.engine.request import (
    FinishReason,
    Message,
    PromptInput,
    RequestOptions,
    Tool,
    ToolCall,
)
from ninfer_runtime.sampling.params import SamplingOverrides
from ninfer_runtime.text.detokenizer import Detokenizer

GOLDENS = Path(__file__).parents[2] / "data" / "tiny-model" / "goldens"
PATHS = sorted([*GOLDENS.glob("chat/*.json"), *GOLDENS.glob("long/*.json")])


CALLS = {
    "08-call-direct": ("set_timer", {"minutes": 86}),
    "20-call-think": ("send_message", {"to": "Frank", "text": "needle basket mirror"}),
}
"""Goldens whose output is a complete call, and the call, read by hand."""


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def golden(request):
    return json.loads(request.param.read_text("utf-8"))


@pytest.fixture(params=CALLS)
def golden_call(request):
    return json.loads((GOLDENS / "chat" / f"{request.param}.json").read_text("utf-8"))


def prompt_of(golden) -> PromptInput:
    if golden["messages"] is None:
        return PromptInput(raw_prompt=golden["text"])
    messages = tuple(
        Message(
            message["role"],
            message["content"],
            message.get("reasoning_content"),
            tuple(
                ToolCall("", call["function"]["name"], call["function"]["arguments"])
                for call in message.get("tool_calls", ())
            ),
        )
        for message in golden["messages"]
    )
    tools = tuple(Tool(**entry["function"]) for entry in golden["tools"] or ())
    return PromptInput(messages=messages, tools=tools, **golden["options"])


def run(frontend, prepared, golden, **options):
    session = frontend.open_output(
        prepared, RequestOptions(max_output_tokens=64, sampling=SamplingOverrides(), **options)
    )
    deltas, reason = [], None
    for token_id in golden["output_ids"]:
        shown, reason = session.accept(token_id)
        deltas += shown
    deltas += session.close(FinishReason.OUTPUT_LIMIT)
    for channel, text in (("content", session.content), ("reasoning", session.reasoning)):
        assert "".join(d.text for d in deltas if d.channel == channel) == text
    return session, reason


def test_there_are_goldens():
    assert len(PATHS) == 31


def test_the_prompt_is_that_of_the_reference(frontend, golden):
    prepared = frontend.prepare(prompt_of(golden))
    assert prepared.text == golden["text"]
    assert list(prepared.token_ids) == golden["prompt_ids"]
    assert prepared.starts_in_reasoning == golden["text"].endswith("<think>\n")


def test_raw_output_is_that_of_the_reference(frontend, golden):
    prepared = frontend.prepare(prompt_of(golden))
    session, _ = run(frontend, prepared, golden, raw_output=True)
    assert session.content == golden["output_text"]
    assert session.reasoning == ""
    assert session.tool_calls == ()


def test_channels_are_those_of_the_reference(frontend, golden):
    prepared = frontend.prepare(prompt_of(golden))
    # Without tools, markup of calls is content, as the reference leaves it.
    object.__setattr__(prepared, "tools", ())
    session, reason = run(frontend, prepared, golden)
    stopped = golden["finish"] == "stop"
    assert session.reasoning == golden.get("reasoning", "")
    assert session.content == golden.get("content", golden["output_text"])
    assert reason == (FinishReason.STOP_TOKEN if stopped else None)
    close = frontend.tokenizer.token_id("</think>")
    thoughts = golden["output_ids"].index(close) + 1 if session.reasoning else 0
    assert session.reasoning_tokens == thoughts


def test_calls_of_the_reference_are_recognised(frontend, golden_call):
    session, _ = run(frontend, frontend.prepare(prompt_of(golden_call)), golden_call)
    assert session.content == ""
    (call,) = session.tool_calls
    assert (call.name, call.arguments) == CALLS[golden_call["name"]]


def test_a_returned_call_renders_to_the_tokens_that_the_model_wrote(frontend, golden_call):
    prompt = prompt_of(golden_call)
    session, _ = run(frontend, frontend.prepare(prompt), golden_call)
    answer = Message("assistant", session.content, session.reasoning, session.tool_calls)
    replay = frontend.prepare(
        PromptInput((*prompt.messages, answer), tools=prompt.tools, add_generation_prompt=False)
    )
    first, output = len(golden_call["prompt_ids"]), golden_call["output_ids"]
    assert list(replay.token_ids[first : first + len(output)]) == output


def test_decoding_the_prompt_gives_its_text(frontend, golden):
    decoder = Detokenizer(frontend.tokenizer, show_special=True)
    text = "".join(map(decoder.feed, golden["prompt_ids"])) + decoder.finish()
    assert text == golden["text"]
