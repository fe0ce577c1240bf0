"""Whether and how much the model thinks, and the other variables of the chat template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeVar, get_args

from ninfer_runtime.engine.request import ReasoningEffort
from ninfer_server.errors import invalid_request
from ninfer_server.openai_chat.schema import ChatCompletionRequest
from ninfer_server.settings import ServerSettings

T = TypeVar("T")

_EFFORTS = get_args(ReasoningEffort)
_NO_THINKING: Final = "none"


@dataclass(frozen=True, slots=True)
class TemplateChoices:
    """What a request and the server decide about the template; None leaves it to the template.

    Attributes:
        enable_thinking: Let the model think first.
        reasoning_effort: How much it should think.
        preserve_thinking: Keep the thoughts of earlier turns.
        options: Further variables.
    """

    enable_thinking: bool | None
    reasoning_effort: ReasoningEffort | None
    preserve_thinking: bool | None
    options: dict[str, Any]


def template_choices(chat: ChatCompletionRequest, settings: ServerSettings) -> TemplateChoices:
    """Join the fields of a request, its ``chat_template_kwargs`` and the server's defaults.

    Raises:
        ApiError: 400: two of them contradict each other, or an option has the wrong type.
    """
    options = dict(chat.chat_template_kwargs or {})
    enable = _agree("enable_thinking", chat.enable_thinking, _flag(options, "enable_thinking"))
    preserve = _agree(
        "preserve_thinking", chat.preserve_thinking, _flag(options, "preserve_thinking")
    )
    effort: ReasoningEffort | None = _agree(
        "reasoning_effort", chat.reasoning_effort, _effort(options)
    )
    if effort is not None:
        thinks = effort != _NO_THINKING
        if enable is not None and enable is not thinks:
            raise invalid_request(
                f"enable_thinking {str(enable).lower()} contradicts reasoning_effort {effort!r}",
                param="reasoning_effort",
                code="conflicting_template_option",
            )
        enable = thinks
    return TemplateChoices(
        enable_thinking=settings.enable_thinking if enable is None else enable,
        reasoning_effort=None if effort == _NO_THINKING else effort,
        preserve_thinking=settings.preserve_thinking if preserve is None else preserve,
        options=options,
    )


def _flag(options: dict[str, Any], name: str) -> bool | None:
    """Take a standard option out of the options; null is the same as absent."""
    value = options.pop(name, None)
    if value is not None and not isinstance(value, bool):
        raise invalid_request(
            f"chat_template_kwargs.{name} must be a boolean", param=f"chat_template_kwargs.{name}"
        )
    return value


def _effort(options: dict[str, Any]) -> ReasoningEffort | None:
    value: ReasoningEffort | None = options.pop("reasoning_effort", None)
    if value is not None and value not in _EFFORTS:
        raise invalid_request(
            f"chat_template_kwargs.reasoning_effort must be one of {', '.join(_EFFORTS)}",
            param="chat_template_kwargs.reasoning_effort",
        )
    return value


def _agree(name: str, field: T | None, option: T | None) -> T | None:
    if field is not None and option is not None and field != option:
        raise invalid_request(
            f"{name} and chat_template_kwargs.{name} differ",
            param=name,
            code="conflicting_template_option",
        )
    return option if field is None else field
