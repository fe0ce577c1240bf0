"""A chat as chat templates expect it: plain dicts under the names that templates read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ninfer_runtime.engine.request import Message, PromptInput, Tool
from ninfer_runtime.text.parsers.reasoning import split_history
from ninfer_runtime.text.protection import DataProtection

RESERVED_VARIABLES = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message"}
)
"""Template variables that a caller's template options must not replace."""

_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}

_STEERABLE_ROLES = frozenset({"system", "developer", "user"})


def message_text(message: Message) -> str:
    """Return the content of a message as one string; adjacent parts need no separator."""
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    return "".join(part.text for part in message.content)


def chat_data(prompt: PromptInput) -> list[Any]:
    """Return everything in a chat that its caller wrote and a template can read."""
    return [
        [message_text(message) for message in prompt.messages],
        [message.reasoning_content for message in prompt.messages],
        [message.tool_call_id for message in prompt.messages],
        [
            [call.id, call.name, call.arguments]
            for message in prompt.messages
            for call in message.tool_calls
        ],
        [[tool.name, tool.description, tool.parameters] for tool in prompt.tools],
        prompt.template_options,
    ]


def message_variables(message: Message, protection: DataProtection) -> dict[str, Any]:
    """Return one message as templates read it, its data protected.

    An assistant's content that still holds the thoughts is split first, because templates look
    for the end of the thoughts in the text, and protected text has none.
    """
    content, reasoning = message_text(message), message.reasoning_content
    if message.role == "assistant" and reasoning is None:
        reasoning, content = split_history(content)
    hide = protection.hide
    if message.role in _STEERABLE_ROLES:
        hide = protection.hide_except_directives
    variables: dict[str, Any] = {"role": message.role, "content": hide(content)}
    if reasoning is not None:
        variables["reasoning_content"] = protection.hide(reasoning)
    if message.tool_calls:
        variables["tool_calls"] = [
            {
                "id": protection.hide(call.id),
                "type": "function",
                "function": {
                    "name": protection.hide(call.name),
                    "arguments": protection.hide_all(call.arguments),
                },
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        variables["tool_call_id"] = protection.hide(message.tool_call_id)
    return variables


def tool_variables(tool: Tool, protection: DataProtection) -> dict[str, Any]:
    """Return one tool as templates read it, its data protected."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = _NO_PARAMETERS if tool.parameters is None else tool.parameters
    return {"type": "function", "function": protection.hide_all(function)}


def chat_variables(
    prompt: PromptInput, messages: Sequence[Message], protection: DataProtection
) -> dict[str, Any]:
    """Return all variables of a template but the tokenizer's.

    Args:
        prompt: Tools and options.
        messages: The messages to render instead of the prompt's own.
        protection: Hides what could begin or end a control token.
    """
    variables: dict[str, Any] = protection.hide_all(prompt.template_options)
    effort = prompt.reasoning_effort
    choices = {
        "enable_thinking": False if effort == "none" else prompt.enable_thinking,
        "reasoning_effort": None if effort == "none" else effort,
        "preserve_thinking": prompt.preserve_thinking,
    }
    variables.update({name: value for name, value in choices.items() if value is not None})
    variables["messages"] = [message_variables(message, protection) for message in messages]
    variables["tools"] = [tool_variables(tool, protection) for tool in prompt.tools] or None
    variables["add_generation_prompt"] = prompt.add_generation_prompt
    return variables


def placements(messages: Sequence[Message]) -> Iterator[tuple[Message, ...]]:
    """Yield ways to place instructions, for templates that refuse where a caller put them.

    First the messages as they are; then developers' turns as system turns; then one system turn
    at the beginning and later ones as marked user turns.
    """
    original = tuple(messages)
    yield original
    as_system = tuple(
        _with_text(message, "system", message_text(message))
        if message.role == "developer"
        else message
        for message in original
    )
    if as_system != original:
        yield as_system
    leading = 0
    while leading < len(as_system) and as_system[leading].role == "system":
        leading += 1
    merged = tuple(
        _with_text(message, "user", f"[system]: {message_text(message)}")
        if message.role == "system"
        else message
        for message in as_system[leading:]
    )
    if leading:
        instructions = "\n\n".join(message_text(message) for message in as_system[:leading])
        merged = (_with_text(as_system[0], "system", instructions), *merged)
    if merged != as_system:
        yield merged


def _with_text(message: Message, role: Any, text: str) -> Message:
    return Message(role, text, message.reasoning_content, message.tool_calls, message.tool_call_id)
