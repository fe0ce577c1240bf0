"""Strict reading and compact writing of the directory's JSON text.

The standard parser accepts more than JSON (NaN, repeated members, lone surrogates, numbers that
become infinite) and fails in several ways (recursion, digit limits). Here everything that is not
plain JSON is one kind of error.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from ninfer_format.errors import ArtifactError

MAX_DEPTH = 128
"""Deepest nesting of arrays and objects inside an open object such as `config`."""
MAX_INTEGER_DIGITS = 1000
"""A 64-bit integer has at most 20; the rest is room for open objects."""
_COSTS = {b"{": 64, b"[": 80, b",": 60, b":": 170}
"""Bytes of memory that what begins at a character takes: an object, an array, a value, a member."""


def parse_json(text: bytes, what: str = "directory", max_bytes: int | None = None) -> Any:
    """Parse UTF-8 JSON.

    Args:
        text: The text, with trailing white space if any.
        what: What the text is, for messages.
        max_bytes: The most memory that reading the text may take, None for any.

    Returns:
        The value. Member order is kept.

    Raises:
        ArtifactError: `json`: bad UTF-8, grammar, a byte-order mark, text after the value, a
            repeated member, NaN or infinity, a number beyond binary64, an integer of more than
            `MAX_INTEGER_DIGITS` digits, nesting that the parser cannot follow, or more values than
            `max_bytes` has room for.
    """
    if max_bytes is not None and estimate_memory(text) > max_bytes:
        raise ArtifactError(
            "json",
            f"{what} would take too much memory",
            expected=f"at most {max_bytes} bytes",
            found=f"up to {estimate_memory(text)}",
        )
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(
            "json", f"{what} is not UTF-8: {error.reason}", offset=error.start
        ) from None
    del text  # Two copies of a long directory would be one too many.
    try:
        return json.loads(
            decoded,
            object_pairs_hook=_unique_members,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_constant,
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise ArtifactError("json", f"{what} is not JSON: {error.msg} at {where}") from None
    except RecursionError:
        raise ArtifactError("json", f"{what} is nested too deeply") from None


def estimate_memory(text: bytes) -> int:
    """The most memory in bytes that a directory of this text takes while it is read.

    A few characters are enough for an object of many bytes. The factors were measured with texts
    of little else than one kind of value; a real directory takes about two thirds of the estimate.
    """
    is_narrow = text.isascii() and b"\\u" not in text
    characters = len(text) * (2 if is_narrow else 8)
    return characters + sum(cost * text.count(sign) for sign, cost in _COSTS.items())


def check_open_value(value: Any, where: str) -> None:
    """Check the inside of an open object, which no schema describes.

    Args:
        value: A parsed JSON value.
        where: Its place in the directory, for messages.

    Raises:
        ArtifactError: `json`: nesting deeper than `MAX_DEPTH`, or a string or member name with a
            lone surrogate, which no UTF-8 file can hold.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        level = _next_level(level, where)
        if not level:
            return
    raise ArtifactError("json", f"{where} is nested deeper than {MAX_DEPTH} levels")


def dump_json(value: Any) -> bytes:
    """Write compact UTF-8 JSON.

    Raises:
        ArtifactError: `json`: the value holds something that JSON cannot express.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise ArtifactError("json", f"directory cannot be written as JSON: {error}") from error


def is_text(value: str) -> bool:
    """Whether a parsed string is valid Unicode text, that is, free of lone surrogates."""
    if value.isascii():
        return True
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _next_level(level: list[Any], where: str) -> list[Any]:
    below: list[Any] = []
    for value in level:
        if isinstance(value, dict):
            below.extend(value.keys())
            below.extend(value.values())
        elif isinstance(value, list):
            below.extend(value)
        elif isinstance(value, str) and not is_text(value):
            raise ArtifactError("json", f"{where} holds a lone surrogate: {value!r}")
    return below


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ArtifactError("json", f"member {name!r} appears twice in one object")
            seen.add(name)
    return members


def _integer(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS:
        raise ArtifactError(
            "json",
            "integer is too long",
            expected=f"at most {MAX_INTEGER_DIGITS} digits",
            found=len(text),
        )
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ArtifactError("json", f"number {text[:40]} is beyond binary64")
    return value


def _constant(name: str) -> NoReturn:
    raise ArtifactError("json", f"{name} is not JSON")
