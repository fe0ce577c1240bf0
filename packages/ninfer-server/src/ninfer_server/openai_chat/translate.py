"""From a checked request body to what the engine executes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_runtime.engine.request import PromptInput, RequestOptions
from ninfer_server.compatibility import Compatibility
from ninfer_server.errors import model_not_found
from ninfer_server.openai_chat.messages import translate_messages
from ninfer_server.openai_chat.sampling import sampling_overrides, sampling_seed
from ninfer_server.openai_chat.schema import ChatCompletionRequest, parse_chat_request
from ninfer_server.openai_chat.thinking import template_choices
from ninfer_server.openai_chat.tools import effective_tools
from ninfer_server.openai_chat.unsupported import refuse_unsupported
from ninfer_server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class ChatCall:
    """One chat completion, ready to be executed and answered.

    Attributes:
        model: The model's name as the answer repeats it.
        prompt: What to continue.
        options: How to continue it.
        stream: Answer with events.
        include_usage: End the events with one that counts the tokens.
        timings_per_token: Put timings on every piece of output.
        return_progress: Send events while the prompt is executed.
        headers: Headers of the answer that tell which fields had no effect.
    """

    model: str
    prompt: PromptInput
    options: RequestOptions
    stream: bool
    include_usage: bool
    timings_per_token: bool
    return_progress: bool
    headers: dict[str, str]


def translate(body: Mapping[str, Any], model_id: str, settings: ServerSettings) -> ChatCall:
    """Check a request body and say what it asks for.

    Args:
        body: The parsed JSON object.
        model_id: Public name of the model that is served.
        settings: Defaults of the server.

    Raises:
        ApiError: 400 naming the field, or 404 for another model.
    """
    chat = parse_chat_request(body)
    if chat.model != model_id and not settings.accept_any_model:
        raise model_not_found(chat.model, model_id)
    compatibility = Compatibility(settings.compatibility)
    refuse_unsupported(chat, compatibility)
    prompt = _prompt(chat, settings, compatibility)
    options = _options(chat, settings, compatibility)
    return ChatCall(
        model=chat.model,
        prompt=prompt,
        options=options,
        stream=bool(chat.stream),
        include_usage=bool(chat.stream_options and chat.stream_options.include_usage),
        timings_per_token=bool(chat.timings_per_token),
        return_progress=bool(chat.return_progress),
        headers=compatibility.headers(),
    )


def _prompt(
    chat: ChatCompletionRequest, settings: ServerSettings, compatibility: Compatibility
) -> PromptInput:
    choices = template_choices(chat, settings)
    return PromptInput(
        messages=translate_messages(chat.messages, compatibility),
        tools=effective_tools(chat, compatibility),
        enable_thinking=choices.enable_thinking,
        reasoning_effort=choices.reasoning_effort,
        preserve_thinking=choices.preserve_thinking,
        template_options=choices.options,
    )


def _options(
    chat: ChatCompletionRequest, settings: ServerSettings, compatibility: Compatibility
) -> RequestOptions:
    stops = (chat.stop,) if isinstance(chat.stop, str) else tuple(chat.stop or ())
    limits = (chat.max_completion_tokens, chat.max_tokens, settings.default_max_tokens)
    return RequestOptions(
        max_output_tokens=next(limit for limit in limits if limit is not None),
        sampling=sampling_overrides(chat, settings, compatibility),
        stop_strings=stops,
        reasoning_stop_strings=stops,
        ignore_eos=bool(chat.ignore_eos),
        seed=sampling_seed(chat, settings),
        parallel_tool_calls=chat.parallel_tool_calls is not False,
    )
