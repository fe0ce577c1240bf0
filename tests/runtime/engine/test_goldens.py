"""Whole requests against reference outputs of the float32 model."""

import json
from pathlib import Path

import pytest

from ninfer_runtime.cli.messages import parse_messages
from ninfer_runtime.engine.engine import Engine
from ninfer_runtime.engine.options import EngineOptions
from ninfer_runtime.engine.request import FinishReason, PromptInput, RequestOptions
from ninfer_runtime.sampling.params import SamplingOverrides

GOLDENS = Path(__file__).parents[2] / "data" / "tiny-model" / "goldens"
CHATS = sorted((GOLDENS / "chat").glob("*.json"))
MAX_OUTPUT_TOKENS = 64


@pytest.fixture(scope="module")
def engine(bf16_model):
    # A small chunk, so that most prompts take several.
    with Engine(
        EngineOptions(bf16_model, backend="cpu", max_context=4096, prefill_chunk=128)
    ) as engine:
        yield engine


def prompt_of(golden):
    if golden["messages"] is None:
        return PromptInput(raw_prompt=golden["text"])
    document = {"messages": golden["messages"], "tools": golden.get("tools") or []}
    messages, tools = parse_messages(json.dumps(document).encode(), "golden")
    return PromptInput(messages, tools=tools, **golden["options"])


def run_greedily(engine, prepared, **options):
    request = RequestOptions(
        max_output_tokens=MAX_OUTPUT_TOKENS,
        sampling=SamplingOverrides(greedy=True),
        **options,
    )
    return engine.submit(prepared, request).wait()


@pytest.mark.parametrize("path", CHATS, ids=lambda path: path.stem)
def test_a_chat_gives_the_reference_tokens(engine, path):
    golden = json.loads(path.read_text())
    prepared = engine.prepare(prompt_of(golden))
    assert prepared.text == golden["text"]
    assert list(prepared.token_ids) == golden["prompt_ids"]
    result = run_greedily(engine, prepared)
    assert list(result.token_ids) == golden["output_ids"]
    stops = golden["finish"] == "stop"
    expected = FinishReason.STOP_TOKEN if stops else FinishReason.OUTPUT_LIMIT
    assert result.finish_reason is expected


@pytest.mark.parametrize("name", ["01-arithmetic-think", "02-fact-direct"])
def test_channels_are_those_of_the_reference(engine, name):
    golden = json.loads((GOLDENS / "chat" / f"{name}.json").read_text())
    result = run_greedily(engine, engine.prepare(prompt_of(golden)))
    assert result.text == golden["content"].removesuffix("<|im_end|>")
    assert result.reasoning == (golden["reasoning"] or "")


def test_calls_are_those_of_the_reference(engine):
    golden = json.loads((GOLDENS / "chat" / "08-call-direct.json").read_text())
    result = run_greedily(engine, engine.prepare(prompt_of(golden)))
    (call,) = result.tool_calls
    assert (call.name, call.arguments) == ("set_timer", {"minutes": 86})
    assert result.text == ""


def test_a_long_chat_gives_the_reference_tokens(engine):
    golden = json.loads((GOLDENS / "long" / "long.json").read_text())
    prepared = engine.prepare(prompt_of(golden))
    assert list(prepared.token_ids) == golden["prompt_ids"]
    assert list(run_greedily(engine, prepared).token_ids) == golden["output_ids"]


def test_a_sampled_answer_does_not_depend_on_the_prefill_chunk(bf16_model, engine):
    golden = json.loads((GOLDENS / "chat" / "06-memory-direct.json").read_text())
    prepared = engine.prepare(prompt_of(golden))
    request = RequestOptions(
        max_output_tokens=24, sampling=SamplingOverrides(temperature=1.0), seed=11, ignore_eos=True
    )
    chunked = engine.submit(prepared, request).wait()
    with Engine(EngineOptions(bf16_model, backend="cpu", prefill_chunk=1024)) as other:
        assert other.submit(prepared, request).wait().token_ids == chunked.token_ids


def test_the_engine_describes_its_model(engine):
    info = engine.model_info
    assert info.name == "tiny-bf16"
    assert info.architecture == "Qwen3_5ForCausalLM"
    assert (info.vocab_size, info.public_tokens, info.hidden_size) == (4096, 4096, 256)
    assert (info.max_context, info.max_position_embeddings) == (4096, 32768)
    # Text parameters, embedding and head, from the table of the model's description.
    assert info.num_parameters == 8_955_952 + 2_097_152
    assert info.formats == ("bf16", "fp32")
    assert info.payload_bytes >= 2 * info.num_parameters


def test_memory_is_counted(engine):
    memory = engine.memory()
    assert memory.weight_bytes >= 4 * 11_000_000
    assert memory.sequence_peak_bytes > 0
