"""Types of tool arguments: the model writes text, the tool's JSON schema says what it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ninfer_runtime.text.json_values import read_json

_TYPES = frozenset({"string", "boolean", "integer", "number", "object", "array", "null"})

OMITTED = object()
"""The value of a parameter that the model left empty although its type has no empty value."""


def strip_framing(text: str) -> str:
    """Remove the newline (LF or CRLF) that separates a value from its tag at either end."""
    for newline in ("\r\n", "\n"):
        if text.startswith(newline):
            text = text[len(newline) :]
            break
    for newline in ("\r\n", "\n"):
        if text.endswith(newline):
            return text[: -len(newline)]
    return text


def parameter_types(schema: Mapping[str, Any] | None, name: str) -> frozenset[str] | None:
    """Return the JSON types that a parameter admits, None if the schema does not tell.

    Args:
        schema: JSON schema of all arguments of the tool.
        name: The parameter.
    """
    properties = schema.get("properties") if schema is not None else None
    declared = properties.get(name) if isinstance(properties, Mapping) else None
    if isinstance(declared, Mapping) and isinstance(declared.get("$ref"), str):
        declared = _local_reference(schema, declared["$ref"])
    if not isinstance(declared, Mapping):
        return None
    explicit = _explicit_types(declared)
    if explicit is not None:
        return explicit
    unions = [declared[key] for key in ("anyOf", "oneOf") if key in declared]
    if len(unions) != 1 or not isinstance(unions[0], list) or not unions[0]:
        return None
    members = [_explicit_types(member) for member in unions[0]]
    known = [types for types in members if types is not None]
    return frozenset().union(*known) if len(known) == len(members) else None


def _explicit_types(schema: Any) -> frozenset[str] | None:
    """Return the types that a schema's own ``type`` names, None if it has none that is usable."""
    declared = schema.get("type") if isinstance(schema, Mapping) else None
    names = [declared] if isinstance(declared, str) else declared
    if not isinstance(names, (list, tuple)) or not names:
        return None
    if not all(isinstance(name, str) and name in _TYPES for name in names):
        return None
    return frozenset(names)


def _local_reference(schema: Any, reference: str) -> Any:
    """Follow ``#/a/b`` one step; anything else leads nowhere."""
    head, *names = reference.split("/")
    if head != "#":
        return None
    for name in names:
        if not isinstance(schema, Mapping):
            return None
        schema = schema.get(name.replace("~1", "/").replace("~0", "~"))
    return schema


def typed_value(text: str, types: frozenset[str] | None) -> Any:
    """Return the value that the model meant by `text`.

    Args:
        text: Between the tags, without the framing newlines.
        types: What the parameter admits, None if nobody knows.

    Returns:
        A JSON value whose numbers keep their spelling, or `OMITTED`. Text that fits no admitted
        type stays a string, so that a call is never lost over one argument.
    """
    if types is not None:
        if "string" in types:
            return text
        stripped = text.strip()
        if not stripped:
            return OMITTED
        if "boolean" in types and stripped.lower() in ("true", "false"):
            return stripped.lower() == "true"
    try:
        return read_json(text)
    except ValueError:
        return text
