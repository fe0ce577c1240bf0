"""The body of a chat completion that is answered at once."""

from __future__ import annotations

import time
from typing import Any

from ninfer_runtime.engine.request import FinishReason, GenerationResult, ToolCall
from ninfer_runtime.text.json_values import write_json
from ninfer_server.ids import new_chat_completion_id, new_tool_call_id
from ninfer_server.openai_chat.usage import timings_of, usage_of


def completion_body(model: str, result: GenerationResult) -> dict[str, Any]:
    """Return the ``chat.completion`` object.

    Args:
        model: The model's name as the client knows it.
        result: What the engine produced.
    """
    choice = {
        "index": 0,
        "message": _message(result),
        "logprobs": None,
        "finish_reason": finish_reason(result),
    }
    return {
        "id": new_chat_completion_id(),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": usage_of(result),
        "timings": timings_of(result),
    }


def _message(result: GenerationResult) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if result.tool_calls and not result.text else result.text,
        "refusal": None,
    }
    if result.reasoning:
        message["reasoning_content"] = result.reasoning
    if result.tool_calls:
        message["tool_calls"] = [tool_call_body(call) for call in result.tool_calls]
    return message


def tool_call_body(call: ToolCall) -> dict[str, Any]:
    """Return one call under an id of its own; arguments keep the model's order and spelling."""
    arguments = write_json(call.arguments)
    return {
        "id": new_tool_call_id(),
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def finish_reason(result: GenerationResult) -> str:
    """Return why the answer ends; one that was cut off says so even if it holds whole calls."""
    if result.finish_reason in (FinishReason.OUTPUT_LIMIT, FinishReason.CONTEXT_CAPACITY):
        return "length"
    return "tool_calls" if result.tool_calls else "stop"
