"""Messages files: a chat, and tools if any, as strict JSON.

A file is an array of messages, or an object with ``messages`` and ``tools``. A key that is not
known is an error, because a misspelt one would otherwise change the prompt without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, cast, get_args

from ninfer_format.errors import UsageError
from ninfer_runtime.engine.request import Message, Role, TextPart, Tool, ToolCall
from ninfer_runtime.text.json_values import read_json

_MESSAGE_KEYS = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id")
_MEDIA = ("image", "image_url", "video", "video_url")


def parse_messages(data: bytes, source: str) -> tuple[tuple[Message, ...], tuple[Tool, ...]]:
    """Read a chat and its tools.

    Args:
        data: Content of the file.
        source: Its name, for messages.

    Raises:
        UsageError: The file is not a chat; the message names the place.
    """
    try:
        return _parse_document(_parse_json(data))
    except _PlaceError as error:
        raise UsageError(str(error), path=source) from None


class _PlaceError(Exception):
    """What is wrong, and where in the document."""


def _refuse(where: str, what: str) -> NoReturn:
    raise _PlaceError(f"{where}: {what}" if where else what)


def _parse_json(data: bytes | str) -> Any:
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        return read_json(text, unique_names=True)
    except UnicodeDecodeError as error:
        _refuse("", f"not UTF-8: {error.reason} at byte {error.start}")
    except ValueError as error:
        _refuse("", f"not JSON: {error}")


def _parse_document(document: Any) -> tuple[tuple[Message, ...], tuple[Tool, ...]]:
    if isinstance(document, dict):
        _check_keys("", document, ("messages", "tools"))
        if "messages" not in document:
            _refuse("", "key 'messages' is missing")
        messages, tools = document["messages"], document.get("tools", [])
    else:
        messages, tools = document, []
    if not isinstance(messages, list) or not messages:
        _refuse("", "expected a non-empty array of messages, or an object with 'messages'")
    if not isinstance(tools, list):
        _refuse("tools", f"expected an array, found {_kind(tools)}")
    return (
        tuple(_parse_message(f"message {index}", value) for index, value in enumerate(messages)),
        tuple(_parse_tool(f"tool {index}", value) for index, value in enumerate(tools)),
    )


def _parse_message(where: str, value: Any) -> Message:
    members = _object(where, value)
    _check_keys(where, members, _MESSAGE_KEYS)
    role = members.get("role")
    if role not in get_args(Role):
        allowed = ", ".join(get_args(Role))
        _refuse(where, f"key 'role' must be one of {allowed}, found {role!r}")
    for key, owner in (
        ("reasoning_content", "assistant"),
        ("tool_calls", "assistant"),
        ("tool_call_id", "tool"),
    ):
        if key in members and role != owner:
            _refuse(where, f"key {key!r} belongs to role {owner}, found role {role}")
    tool_calls = _parse_tool_calls(where, members)
    return Message(
        role=cast(Role, role),
        content=_parse_content(where, members, has_calls=bool(tool_calls)),
        reasoning_content=_optional_string(where, members, "reasoning_content"),
        tool_calls=tool_calls,
        tool_call_id=_optional_string(where, members, "tool_call_id"),
    )


def _parse_content(
    where: str, members: Mapping[str, Any], *, has_calls: bool
) -> str | tuple[TextPart, ...] | None:
    if "content" not in members:
        _refuse(where, "key 'content' is missing")
    content = members["content"]
    if content is None or content == "":
        if not has_calls:
            _refuse(where, "key 'content' is empty and there are no tool calls")
        return cast(str | None, content)
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        _refuse(where, f"key 'content' must be a string or an array, found {_kind(content)}")
    if not content:
        _refuse(where, "key 'content' is an empty array")
    return tuple(_parse_part(f"{where}, part {index}", part) for index, part in enumerate(content))


def _parse_part(where: str, value: Any) -> TextPart:
    part = _object(where, value)
    kind = part.get("type")
    for name in _MEDIA:
        if kind == name or (kind is None and name in part):
            _refuse(where, f"{name}: this release executes text only, media are not supported")
    _check_keys(where, part, ("type", "text"))
    if kind not in (None, "text"):
        _refuse(where, f"key 'type' must be 'text', found {kind!r}")
    if not isinstance(part.get("text"), str):
        _refuse(where, f"key 'text' must be a string, found {_kind(part.get('text'))}")
    return TextPart(part["text"])


def _parse_tool_calls(where: str, members: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    if "tool_calls" not in members:
        return ()
    calls = members["tool_calls"]
    if not isinstance(calls, list) or not calls:
        _refuse(where, "key 'tool_calls' must be a non-empty array")
    return tuple(
        _parse_tool_call(f"{where}, tool call {index}", f"call_{index}", call)
        for index, call in enumerate(calls)
    )


def _parse_tool_call(where: str, default_id: str, value: Any) -> ToolCall:
    call = _object(where, value)
    if "function" in call:
        _check_keys(where, call, ("id", "type", "function"))
        if call.get("type", "function") != "function":
            _refuse(where, f"key 'type' must be 'function', found {call['type']!r}")
        function = _object(f"{where}, key 'function'", call["function"])
        _check_keys(where, function, ("name", "arguments"))
    else:
        _check_keys(where, call, ("name", "arguments"))
        function = call
    return ToolCall(
        id=_optional_string(where, call, "id") or default_id,
        name=_required_string(where, function, "name"),
        arguments=_parse_arguments(where, function.get("arguments")),
    )


def _parse_arguments(where: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = _parse_json(value)
        except _PlaceError as error:
            _refuse(where, f"key 'arguments': {error}")
    if not isinstance(value, dict):
        _refuse(
            where,
            f"key 'arguments' must be an object or a string holding one, found {_kind(value)}",
        )
    return value


def _parse_tool(where: str, value: Any) -> Tool:
    tool = _object(where, value)
    if "function" in tool:
        _check_keys(where, tool, ("type", "function"))
        if tool.get("type", "function") != "function":
            _refuse(where, f"key 'type' must be 'function', found {tool['type']!r}")
        tool = _object(f"{where}, key 'function'", tool["function"])
    _check_keys(where, tool, ("name", "description", "parameters"))
    parameters = tool.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        _refuse(where, f"key 'parameters' must be an object, found {_kind(parameters)}")
    return Tool(
        name=_required_string(where, tool, "name"),
        description=_optional_string(where, tool, "description"),
        parameters=parameters,
    )


def _check_keys(where: str, members: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for key in members:
        if key not in allowed:
            _refuse(where, f"unknown key {key!r} (known: {', '.join(allowed)})")


def _object(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(where, f"expected an object, found {_kind(value)}")
    return value


def _optional_string(where: str, members: Mapping[str, Any], key: str) -> str | None:
    return None if members.get(key) in (None, "") else _required_string(where, members, key)


def _required_string(where: str, members: Mapping[str, Any], key: str) -> str:
    value = members.get(key)
    if not isinstance(value, str) or not value:
        _refuse(where, f"key {key!r} must be a non-empty string, found {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "nothing or null"
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return names.get(type(value), "a number")
