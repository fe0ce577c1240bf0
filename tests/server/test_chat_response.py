"""Chat completions that are answered at once."""

import re

import pytest

from ninfer_runtime.text.frontend import Frontend

PATH = "/v1/chat/completions"
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {
            "type": "object",
            "properties": {"deep": {"type": "boolean"}, "name": {"type": "string"}},
        },
    },
}
CALL = (
    "<tool_call>\n<function=find>\n<parameter=deep>\nTrue\n</parameter>\n"
    "<parameter=name>\nLevel\n</parameter>\n</function>\n</tool_call>"
)


def post(client, request_body):
    answer = client.post(PATH, json=request_body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_answer_has_the_documented_body(client, program, body):
    program.script("Rome.")
    answer = client.post(PATH, json=body("Capital of Italy?"))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    data = answer.json()
    assert list(data) == ["id", "object", "created", "model", "choices", "usage", "timings"]
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{16}", data["id"])
    assert data["object"] == "chat.completion"
    assert isinstance(data["created"], int)
    assert data["model"] == "scripted"
    assert data["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Rome.", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


def test_tokens_are_counted(client, program, frontend, body):
    script = program.script("one two three")
    usage = post(client, body())["usage"]
    assert usage == {
        "prompt_tokens": len(program.prompts[0]),
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens": len(script.token_ids),
        "completion_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": len(program.prompts[0]) + len(script.token_ids),
    }


def test_prompt_is_the_rendered_chat(client, program, frontend, body):
    post(client, body("Where is Rome?"))
    text = "".join(frontend.tokenizer.token_bytes(i).decode() for i in program.prompts[0])
    assert text == (
        "<|im_start|>user\nWhere is Rome?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_thoughts_are_apart(client, program, body):
    program.script("Let me see.\n</think>\n\nRome.")
    data = post(client, body(enable_thinking=True))
    assert data["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Rome.",
        "refusal": None,
        "reasoning_content": "Let me see.",
    }
    assert data["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


def test_empty_answer_is_an_empty_string(client, program, body):
    program.script("")
    message = post(client, body())["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "", "refusal": None}


def test_call_is_structured_and_content_is_null(client, program, body):
    program.script(CALL)
    choice = post(client, body(tools=[TOOL]))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert re.fullmatch(r"call_[0-9a-f]{16}", call.pop("id"))
    assert call == {
        "type": "function",
        "function": {"name": "find", "arguments": '{"deep":true,"name":"Level"}'},
    }


def test_report_d01_python_spelling_of_a_boolean_is_a_boolean(client, program, body):
    program.script(CALL)
    choice = post(client, body(tools=[TOOL]))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
    assert arguments == '{"deep":true,"name":"Level"}'


def test_text_before_calls_is_content_and_ids_differ(client, program, body):
    program.script(f"I look.\n\n{CALL}\n{CALL}")
    message = post(client, body(tools=[TOOL]))["choices"][0]["message"]
    assert message["content"] == "I look."
    assert len({call["id"] for call in message["tool_calls"]}) == 2


def test_call_without_declared_tools_is_text(client, program, body):
    program.script(CALL)
    choice = post(client, body(tools=[TOOL], tool_choice="none"))["choices"][0]
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"


def test_report_d15_malformed_call_is_unchanged_text(client, program, body, events):
    broken = CALL.replace("\n</function>", "\n</parameter>\n</function>")
    for stream in (False, True):
        program.script(broken)
        answer = client.post(PATH, json=body(tools=[TOOL], stream=stream))
        if not stream:
            assert answer.json()["choices"][0]["message"]["content"] == broken
            continue
        chunks = events(answer.content)
        assert chunks[-1] == "[DONE]"
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
        assert "".join(delta.get("content", "") for delta in deltas) == broken


@pytest.mark.parametrize(("limit", "content"), [(0, ""), (1, "one"), (2, "one two")])
def test_output_limit(client, program, body, limit, content):
    program.script("one two three four")
    data = post(client, body(max_tokens=limit))
    assert data["choices"][0]["message"]["content"] == content
    assert data["choices"][0]["finish_reason"] == "length"
    assert data["usage"]["completion_tokens"] == limit


def test_complete_calls_do_not_hide_that_the_answer_was_cut_off(client, program, body):
    script = program.script(CALL, stop=False)
    data = post(client, body(tools=[TOOL], max_tokens=len(script.token_ids)))
    assert len(data["choices"][0]["message"]["tool_calls"]) == 1
    assert data["choices"][0]["finish_reason"] == "length"


def test_full_context_ends_the_answer(client, program, engine, body):
    program.script(program.tokens("x") * 50, stop=False)
    words = "x " * (engine.max_context // 2 - 20)
    data = post(client, body(words))
    assert data["choices"][0]["finish_reason"] == "length"
    assert data["usage"]["total_tokens"] == engine.max_context + 1


def test_prompt_longer_than_the_context_is_refused_with_both_numbers(client, engine, body):
    answer = client.post(PATH, json=body("x " * engine.max_context))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "messages"
    assert error["max_context"] == engine.max_context
    assert error["prompt_tokens"] > engine.max_context


def test_stop_tokens_can_be_ignored(client, program, frontend, body):
    stop = frontend.stop_token_ids[0]
    (word,) = program.tokens("one")
    program.script([word, stop, word, stop], stop=False)
    data = post(client, body(ignore_eos=True, max_tokens=4))
    assert data["usage"]["completion_tokens"] == 4
    assert data["choices"][0]["message"]["content"] == "oneone"


def test_timings_are_finite_and_never_negative(client, program, body):
    for text, limit in (("one two three", 10), ("one", 1), ("", 5), ("x", 0)):
        program.script(text)
        timings = post(client, body(max_tokens=limit))["timings"]
        assert list(timings) == [
            "cache_n",
            "prompt_n",
            "prompt_ms",
            "prompt_per_token_ms",
            "prompt_per_second",
            "predicted_n",
            "predicted_ms",
            "predicted_per_token_ms",
            "predicted_per_second",
        ]
        assert all(value >= 0 for value in timings.values())
        assert timings["prompt_n"] == len(program.prompts[-1])
        assert timings["prompt_per_token_ms"] == timings["prompt_ms"] / timings["prompt_n"]
        if timings["predicted_n"] <= 1:
            assert timings["predicted_per_second"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_refusal_of_the_template_is_told_in_its_words(
    make_engine, make_client, text_files, body, stream
):
    template = b"{{ raise_exception('only poems, please') }}"
    engine = make_engine(Frontend({**text_files, "chat_template.jinja": template}))
    answer = make_client(engine).post(PATH, json=body(stream=stream))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "invalid_prompt"
    assert error["param"] == "messages"
    assert "only poems, please" in error["message"]


def test_system_turn_is_possible_anywhere(client, program, frontend):
    messages = [
        {"role": role, "content": role}
        for role in ("system", "developer", "user", "system", "assistant", "developer", "user")
    ]
    answer = client.post(PATH, json={"model": "scripted", "messages": messages})
    assert answer.status_code == 200
    text = b"".join(map(frontend.tokenizer.token_bytes, program.prompts[0])).decode()
    assert text.count("system") >= 2
    assert text.count("developer") >= 2


def test_fields_without_effect_are_named_in_a_header(client, body):
    for stream in (False, True):
        answer = client.post(PATH, json=body(top_k=40, store=True, stream=stream))
        assert answer.headers["x-ninfer-ignored"] == "store,top_k"


def test_seed_and_temperature_reach_the_engine(client, engine, monkeypatch, body):
    seen = []
    submit = engine.submit

    def watched(prompt, options, *rest, **more):
        seen.append(options)
        return submit(prompt, options, *rest, **more)

    monkeypatch.setattr(engine, "submit", watched)
    post(client, body(seed=-1, temperature=0.5))
    assert seen[0].seed == 2**64 - 1
    assert seen[0].sampling.temperature == 0.5
