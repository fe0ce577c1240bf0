"""The turns of a chat: which roles may carry what, and how they reach the template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

from ninfer_runtime.engine.request import Message, Role, ToolCall
from ninfer_runtime.text.json_values import read_json
from ninfer_server.compatibility import Compatibility
from ninfer_server.errors import invalid_request, quoted
from ninfer_server.openai_chat.schema import CalledFunction, ChatMessage, ContentPart
from ninfer_server.openai_chat.tools import is_function_name

LEGACY_TOOL_ROLE = "function"
ROLES: tuple[str, ...] = get_args(Role)


def translate_messages(
    messages: Sequence[ChatMessage], compatibility: Compatibility
) -> tuple[Message, ...]:
    """Return the chat in the form that the engine takes.

    Raises:
        ApiError: 400 naming the message and the field.
    """
    return tuple(
        _translate(message, f"messages[{index}]", compatibility)
        for index, message in enumerate(messages)
    )


def _translate(message: ChatMessage, where: str, compatibility: Compatibility) -> Message:
    if message.role != LEGACY_TOOL_ROLE and message.role not in ROLES:
        raise invalid_request(
            f"{where}: role {quoted(message.role)} is not one of {', '.join(ROLES)}",
            param=f"{where}.role",
            code="unsupported_role",
        )
    _check_name(message, where, compatibility)
    _check_tool_call_id(message, where)
    if message.role == "assistant":
        return _assistant(message, where, compatibility)
    _refuse_assistant_fields(message, where)
    if message.role in ("tool", LEGACY_TOOL_ROLE):
        return _tool_answer(message, where, compatibility)
    if message.content is None:
        raise invalid_request(f"{where}.content is required", param=f"{where}.content")
    content = _text(message, where, compatibility)
    return Message(role=cast(Role, message.role), content=content)


def _assistant(message: ChatMessage, where: str, compatibility: Compatibility) -> Message:
    if message.audio is not None:
        raise invalid_request(
            f"{where}.audio: spoken answers cannot be replayed",
            param=f"{where}.audio",
            code="assistant_history_not_supported",
        )
    reasoning = message.reasoning_content or message.reasoning or None
    if message.reasoning and message.reasoning != reasoning:
        raise invalid_request(
            f"{where}: reasoning and reasoning_content are one field and differ",
            param=f"{where}.reasoning",
            code="conflicting_template_option",
        )
    calls = _tool_calls(message, where)
    content = _text(message, where, compatibility) + (message.refusal or "")
    return Message(
        role="assistant",
        content=content if content or not calls else None,
        reasoning_content=reasoning,
        tool_calls=calls,
    )


def _tool_answer(message: ChatMessage, where: str, compatibility: Compatibility) -> Message:
    if message.role == LEGACY_TOOL_ROLE:
        if not message.name or not is_function_name(message.name):
            raise invalid_request(
                f"{where}.name is required and must be the name of a function",
                param=f"{where}.name",
            )
    elif message.tool_call_id is None:
        raise invalid_request(f"{where}.tool_call_id is required", param=f"{where}.tool_call_id")
    if message.content is None:
        missing = invalid_request(f"{where}.content is required", param=f"{where}.content")
        compatibility.ignore(f"{where}.content", otherwise=missing)
    content = _text(message, where, compatibility)
    return Message(role="tool", content=content, tool_call_id=message.tool_call_id)


def _check_name(message: ChatMessage, where: str, compatibility: Compatibility) -> None:
    if message.name and message.role not in ("tool", LEGACY_TOOL_ROLE):
        unsupported = invalid_request(
            f"{where}.name: participants cannot be told apart by name",
            param=f"{where}.name",
            code="message_name_not_supported",
        )
        compatibility.ignore(f"{where}.name", otherwise=unsupported)


def _check_tool_call_id(message: ChatMessage, where: str) -> None:
    if message.tool_call_id and message.role != "tool":
        raise invalid_request(
            f"{where}.tool_call_id belongs to tool messages only", param=f"{where}.tool_call_id"
        )


def _refuse_assistant_fields(message: ChatMessage, where: str) -> None:
    given = {
        "reasoning_content": message.reasoning_content,
        "reasoning": message.reasoning,
        "function_call": message.function_call,
        "tool_calls": message.tool_calls,
    }
    for field, value in given.items():
        if value:
            raise invalid_request(
                f"{where}.{field} belongs to assistant messages only", param=f"{where}.{field}"
            )


def _text(message: ChatMessage, where: str, compatibility: Compatibility) -> str:
    if message.content is None:
        return ""
    if isinstance(message.content, str):
        return message.content
    return "".join(
        _part_text(part, message.role, f"{where}.content[{index}]", compatibility)
        for index, part in enumerate(message.content)
    )


def _part_text(part: ContentPart, role: str, where: str, compatibility: Compatibility) -> str:
    _check_cache_breakpoint(part, where)
    if part.type == "text" and part.text is not None:
        return part.text
    if part.type == "refusal" and role == "assistant" and part.refusal is not None:
        return part.refusal
    if part.type in ("text", "refusal") and getattr(part, part.type) is None:
        raise invalid_request(f"{where}.{part.type} is required", param=f"{where}.{part.type}")
    if _is_media(part, role):
        _check_media(part, where, compatibility)
        raise invalid_request(
            f"{where}: this server reads no images and no videos",
            param=where,
            code="vision_disabled",
        )
    raise invalid_request(
        f"{where}: a part of type {quoted(part.type)} is not possible in a message of role {role!r}",
        param=f"{where}.type",
        code="modality_not_supported",
    )


def _is_media(part: ContentPart, role: str) -> bool:
    if part.type == "image_url":
        return role in ("user", "tool")
    return part.type == "video_url" and role == "user"


def _check_media(part: ContentPart, where: str, compatibility: Compatibility) -> None:
    field = part.type
    source = part.image_url if field == "image_url" else part.video_url
    url = source.get("url") if isinstance(source, Mapping) else source
    if not isinstance(url, str):
        raise invalid_request(
            f"{where}.{field} must be a URL or an object with one", param=f"{where}.{field}"
        )
    detail = source.get("detail") if isinstance(source, Mapping) else None
    if field == "image_url" and detail not in (None, "auto"):
        unsupported = invalid_request(
            f"{where}.image_url.detail: only 'auto' is possible",
            param=f"{where}.image_url.detail",
            code="image_detail_not_supported",
        )
        compatibility.ignore(f"{where}.image_url.detail", otherwise=unsupported)


def _check_cache_breakpoint(part: ContentPart, where: str) -> None:
    if part.prompt_cache_breakpoint not in (None, {"mode": "explicit"}):
        raise invalid_request(
            f'{where}.prompt_cache_breakpoint must be {{"mode": "explicit"}}',
            param=f"{where}.prompt_cache_breakpoint",
            code="invalid_cache_breakpoint",
        )


def _tool_calls(message: ChatMessage, where: str) -> tuple[ToolCall, ...]:
    calls = []
    if message.function_call is not None:
        calls.append(_tool_call("", message.function_call, f"{where}.function_call"))
    for index, call in enumerate(message.tool_calls or ()):
        place = f"{where}.tool_calls[{index}]"
        if call.type not in (None, "function"):
            raise invalid_request(
                f"{place}.type {quoted(call.type)} is not 'function'",
                param=f"{place}.type",
                code="tool_type_not_supported",
            )
        calls.append(_tool_call(call.id, call.function, f"{place}.function"))
    return tuple(calls)


def _tool_call(call_id: str, function: CalledFunction, where: str) -> ToolCall:
    arguments = function.arguments
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        arguments = _parse_arguments(arguments, f"{where}.arguments")
    return ToolCall(id=call_id, name=function.name, arguments=arguments)


def _parse_arguments(text: str, where: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        arguments = read_json(text)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise invalid_request(
            f"{where} must be a JSON object", param=where, code="invalid_tool_history"
        )
    return arguments
