"""The official client against a process that serves the built-in model."""

import json
from pathlib import Path

import openai
import pytest

KEY = "key-of-the-test"
MODEL = "tiny-qwen3_5"
CHATS = Path(__file__).parents[1] / "data" / "tiny-model" / "goldens" / "chat"


@pytest.fixture(scope="module")
def process(serve_command):
    options = ("--greedy", "--log-level", "warning", "--api-key", KEY)
    with serve_command(*options) as (child, ready):
        yield ready
        child.process.terminate()
        code, err = child.wait()
        assert code == 0
    # The choice of the built-in model is told, and nothing else happened that deserves a warning.
    assert err == "no MODEL given: using the built-in model tiny-qwen3_5\n"


@pytest.fixture(scope="module")
def client(process):
    with openai.OpenAI(
        base_url=f"{process['url']}/v1", api_key=KEY, max_retries=0, timeout=60
    ) as client:
        yield client


def chat(name):
    golden = json.loads((CHATS / f"{name}.json").read_text())
    return {
        "model": MODEL,
        "messages": golden["messages"],
        "tools": golden.get("tools") or openai.NOT_GIVEN,
        "extra_body": {"enable_thinking": golden["options"].get("enable_thinking", True)},
    }


def test_ready_document_tells_what_was_asked_for(process):
    assert process["model"] == MODEL
    assert process["auth"] is True
    assert process["max_context"] == 8192
    assert process["max_concurrency"] == 1
    assert process["backend"] == "cpu"


def test_models_are_listed(client):
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert client.models.retrieve(MODEL) == model


def test_answer_with_thoughts(client):
    answer = client.chat.completions.create(**chat("14-fact-think"))
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.message.content
    assert choice.message.reasoning_content
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens
    assert answer.timings["predicted_n"] == usage.completion_tokens


@pytest.mark.parametrize("name", ["02-fact-direct", "14-fact-think"])
def test_stream_adds_up_to_the_answer(client, name):
    whole = client.chat.completions.create(**chat(name))
    chunks = list(
        client.chat.completions.create(
            **chat(name), stream=True, stream_options={"include_usage": True}
        )
    )
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    message = whole.choices[0].message
    assert "".join(delta.content or "" for delta in deltas) == message.content
    thoughts = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert thoughts == getattr(message, "reasoning_content", "")
    assert [delta.role for delta in deltas if delta.role] == ["assistant"]
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert [reason for reason in reasons if reason] == ["stop"]
    assert chunks[-1].usage == whole.usage


@pytest.mark.parametrize("stream", [False, True])
def test_tool_is_called_and_its_result_used(client, stream):
    request = chat("08-call-direct")
    if stream:
        with client.chat.completions.stream(**request) as events:
            message = events.get_final_completion().choices[0].message
    else:
        choice = client.chat.completions.create(**request).choices[0]
        assert choice.finish_reason == "tool_calls"
        message = choice.message
    (call,) = message.tool_calls
    assert call.function.name == "set_timer"
    assert json.loads(call.function.arguments) == {"minutes": 86}
    history = [
        *request["messages"],
        {
            "role": "assistant",
            "content": message.content,
            "tool_calls": [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": call.function.arguments,
                    },
                }
            ],
        },
        {"role": "tool", "tool_call_id": call.id, "content": '{"status": "ok"}'},
    ]
    answer = client.chat.completions.create(**{**request, "messages": history})
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content
    assert answer.usage.prompt_tokens > 200


HELLO = [{"role": "user", "content": "hi"}]


def test_unknown_model_is_an_error_of_its_own_class(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="other", messages=HELLO)
    assert caught.value.code == "model_not_found"
    assert caught.value.request_id


@pytest.mark.parametrize("stream", [False, True])
def test_refusal_carries_its_code_and_its_field(client, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=HELLO, n=2, stream=stream)
    assert (caught.value.code, caught.value.param) == ("n_not_supported", "n")


def test_wrong_key_is_an_error_of_its_own_class(client):
    with pytest.raises(openai.AuthenticationError) as caught:
        client.with_options(api_key="wrong").models.list()
    assert caught.value.code == "invalid_api_key"


def test_greedy_server_gives_the_same_answer_twice(client):
    request = chat("04-words-direct")
    first, second = (
        client.chat.completions.create(**request, temperature=1, seed=seed).choices[0].message
        for seed in (1, 2)
    )
    assert first.content == second.content


def test_client_may_leave_a_stream(client):
    request = {**chat("02-fact-direct"), "max_tokens": 4000}
    request["extra_body"]["ignore_eos"] = True
    with client.chat.completions.create(**request, stream=True) as stream:
        next(iter(stream))
    assert client.chat.completions.create(**chat("02-fact-direct")).choices[0].message.content
