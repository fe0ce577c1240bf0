"""The functions that a request declares, and how freely the model may call them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ninfer_runtime.engine.request import Tool
from ninfer_server.compatibility import Compatibility
from ninfer_server.errors import ApiError, invalid_request, quoted
from ninfer_server.openai_chat.schema import (
    ChatCompletionRequest,
    FunctionDefinition,
    ToolDefinition,
)

HOSTED_TOOL_TYPES = frozenset(
    {
        "code_interpreter",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "shell",
        "tool_search",
        "web_search",
        "web_search_preview",
    }
)
"""Tools that a provider executes itself; a client cannot, so the model must not call them."""

MAX_NAME_LENGTH = 64

_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_NAME_LENGTH}}}", re.ASCII)


def effective_tools(chat: ChatCompletionRequest, compatibility: Compatibility) -> tuple[Tool, ...]:
    """Return the functions that the prompt shows and the output may call.

    Raises:
        ApiError: 400 naming the field.
    """
    declared = _declared_tools(chat.tools or (), compatibility)
    allowed = _allowed_names(chat.tool_choice, tuple(tool.name for tool in declared))
    return tuple(tool for tool in declared if tool.name in allowed)


def _declared_tools(
    definitions: Iterable[ToolDefinition], compatibility: Compatibility
) -> list[Tool]:
    tools: list[Tool] = []
    for index, definition in enumerate(definitions):
        where = f"tools[{index}]"
        if definition.type != "function":
            _skip_hosted_tool(definition.type, where, compatibility)
            continue
        if definition.function is None:
            raise invalid_request(f"{where}.function is required", param=f"{where}.function")
        _check_function(definition.function, f"{where}.function", {tool.name for tool in tools})
        function = definition.function
        tools.append(Tool(function.name, function.description, function.parameters))
    return tools


def _skip_hosted_tool(kind: str, where: str, compatibility: Compatibility) -> None:
    unsupported = invalid_request(
        f"{where}.type {quoted(kind)} is not 'function'",
        param=f"{where}.type",
        code="tool_type_not_supported",
    )
    if kind not in HOSTED_TOOL_TYPES:
        raise unsupported
    compatibility.ignore(where, otherwise=unsupported)


def is_function_name(name: str) -> bool:
    """Whether clients may give a function this name."""
    return _NAME.fullmatch(name) is not None


def _check_function(function: FunctionDefinition, where: str, taken: set[str]) -> None:
    name = function.name
    if not is_function_name(name):
        raise invalid_request(
            f"{where}.name {quoted(name)} has {len(name)} characters; "
            f"1 to {MAX_NAME_LENGTH} of A-Z a-z 0-9 _ - are possible",
            param=f"{where}.name",
            code="invalid_tool_name",
        )
    if name in taken:
        raise invalid_request(
            f"{where}.name {name!r} is declared twice",
            param=f"{where}.name",
            code="duplicate_tool_name",
        )
    if function.strict:
        raise invalid_request(
            f"{where}.strict: arguments cannot be forced to fit their schema",
            param=f"{where}.strict",
            code="strict_tools_not_supported",
        )


def _allowed_names(choice: str | dict[str, Any] | None, declared: tuple[str, ...]) -> set[str]:
    if choice is None or choice == "auto":
        return set(declared)
    if choice == "none":
        return set()
    if choice == "required":
        if not declared:
            raise invalid_request("tool_choice: there are no tools", param="tool_choice")
        raise _cannot_force()
    if isinstance(choice, dict) and choice.get("type") == "function":
        _check_declared([_choice_name(choice)], declared)
        raise _cannot_force()
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed_tools(choice.get("allowed_tools", choice), declared)
    raise _malformed_choice()


def _allowed_tools(choice: object, declared: tuple[str, ...]) -> set[str]:
    """Return the names of ``{"mode": ..., "tools": [{"type": "function", ...}]}``."""
    if not isinstance(choice, dict) or not isinstance(choice.get("tools"), list):
        raise _malformed_choice()
    names = [_choice_name(tool) for tool in choice["tools"]]
    _check_declared(names, declared)
    if choice.get("mode") == "required":
        raise _cannot_force()
    if choice.get("mode") != "auto":
        raise _malformed_choice()
    return set(names)


def _choice_name(choice: object) -> str:
    """Return the name in ``{"type": "function", "function": {"name"}}`` or its flat form."""
    if not isinstance(choice, dict) or choice.get("type") != "function":
        raise _malformed_choice()
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise _malformed_choice()
    return name


def _check_declared(names: Iterable[str], declared: tuple[str, ...]) -> None:
    for name in names:
        if name not in declared:
            raise invalid_request(
                f"tool_choice: function {quoted(name)} is not in tools", param="tool_choice"
            )


def _cannot_force() -> ApiError:
    return invalid_request(
        "tool_choice: a call cannot be forced, only 'auto' and 'none' are possible",
        param="tool_choice",
        code="tool_choice_not_supported",
    )


def _malformed_choice() -> ApiError:
    return invalid_request(
        "tool_choice must be 'auto', 'none', 'required', a function or a set of allowed tools",
        param="tool_choice",
    )
