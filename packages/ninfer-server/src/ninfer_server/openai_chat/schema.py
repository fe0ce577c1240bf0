"""The types of a chat completion request.

Types are strict: no string counts as a number, no number as a boolean. ``null`` is the same as an
absent field, and fields that are not listed are ignored. What values mean, and which combinations
are refused, is decided in `translate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ninfer_runtime.engine.request import ReasoningEffort
from ninfer_server.errors import ApiError, invalid_request

T = TypeVar("T")

MAX_STOP_STRINGS = 4
MIN_SEED, MAX_SEED = -(1 << 63), (1 << 64) - 1

NonEmpty = Annotated[str, Field(min_length=1)]
JsonObject = dict[str, Any]
ItemsOf = Annotated[list[T], Field(fail_fast=True)]
"""A list that is checked up to its first fault, which is the only one that is reported."""

_REASONS = dict.fromkeys(("dict_type", "model_type"), "should be an object")
"""What JSON calls things where the checker speaks of Python's types."""


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class ContentPart(_Model):
    """One part of a message's content; ``type`` says which other field it has."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    video_url: Any = None
    prompt_cache_breakpoint: Any = None


class CalledFunction(_Model):
    """The function of a call in the history of a chat."""

    name: str
    arguments: str | JsonObject | None = None


class HistoryToolCall(_Model):
    """A call in the history of a chat."""

    id: str
    type: str | None = None
    function: CalledFunction


class ChatMessage(_Model):
    """One turn."""

    role: str
    content: str | ItemsOf[ContentPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    audio: Any = None
    tool_calls: ItemsOf[HistoryToolCall] | None = None
    function_call: CalledFunction | None = None
    tool_call_id: str | None = None


class FunctionDefinition(_Model):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class ToolDefinition(_Model):
    """A tool; only functions can be called here."""

    type: str
    function: FunctionDefinition | None = None


class StreamOptions(_Model):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class PromptCacheOptions(_Model):
    """Hints for the reuse of prompts."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


class ChatCompletionRequest(_Model):
    """The body of ``POST /v1/chat/completions``."""

    model: NonEmpty
    messages: Annotated[ItemsOf[ChatMessage], Field(min_length=1)]

    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    stop: NonEmpty | Annotated[ItemsOf[NonEmpty], Field(max_length=MAX_STOP_STRINGS)] | None = None
    ignore_eos: bool | None = None

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: float | None = None
    seed: Annotated[int, Field(ge=MIN_SEED, le=MAX_SEED)] | None = None
    n: int | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None

    tools: ItemsOf[ToolDefinition] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    tool_constraints: Literal["auto", "basic"] | None = None
    functions: list[Any] | None = None
    function_call: str | JsonObject | None = None

    response_format: JsonObject | None = None
    structured_outputs: JsonObject | None = None
    grammar: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None

    reasoning_effort: ReasoningEffort | None = None
    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    continue_final_message: bool | None = None

    modalities: ItemsOf[str] | None = None
    audio: JsonObject | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    store: bool | None = None
    web_search_options: Any = None
    moderation: Any = None
    mm_processor_kwargs: JsonObject | None = None

    prompt_cache_key: Annotated[str, Field(max_length=64)] | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    safety_identifier: Annotated[str, Field(max_length=64)] | None = None
    user: str | None = None


def parse_chat_request(body: Mapping[str, Any]) -> ChatCompletionRequest:
    """Check the types of a request body.

    Raises:
        ApiError: 400 with the name of the field.
    """
    try:
        return ChatCompletionRequest.model_validate(body)
    except ValidationError as error:
        raise _type_error(error, body) from None


def _type_error(error: ValidationError, body: Mapping[str, Any]) -> ApiError:
    """Return the error for the first field at fault, in the deepest place that is known of it.

    A union reports each of its members; members that fail further inside say more.
    """
    found: dict[str, list[str]] = {}
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        param = _param(detail["loc"], body, is_missing=detail["type"] == "missing")
        messages = found.setdefault(param, [])
        message = _REASONS.get(detail["type"], detail["msg"].removeprefix("Input "))
        if message not in messages:
            messages.append(message)
    first = next(iter(found))
    param = max((name for name in found if name.startswith(first)), key=len)
    reasons = " or ".join(message[:1].lower() + message[1:] for message in found[param])
    return invalid_request(f"{param}: {reasons}", param=param)


def _param(location: tuple[int | str, ...], body: object, *, is_missing: bool) -> str:
    """Return a field's name like ``messages[0].content``.

    The location also names members of unions, which do not exist in the body and are left out.
    """
    param = ""
    value = body
    for position, step in enumerate(location):
        is_last = position == len(location) - 1
        if isinstance(value, list) and isinstance(step, int) and step < len(value):
            param += f"[{step}]"
            value = value[step]
        elif isinstance(value, Mapping) and (step in value or (is_missing and is_last)):
            param += f".{step}" if param else str(step)
            value = value.get(step)
    return param
