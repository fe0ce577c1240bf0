"""Checks of single JSON values: types, ranges, names, closed sets of members.

A directory may bind tens of thousands of parameters, so the text that says where a value stands is
made only when a check fails, by `check_each` and `check_named`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from ninfer_format.container.framing import U64_MAX
from ninfer_format.container.json_text import check_open_value, is_text
from ninfer_format.errors import ArtifactError

Checked = TypeVar("Checked")


class Members:
    """The member names that one kind of JSON object has."""

    def __init__(self, what: str, required: str, optional: str = "") -> None:
        self.what = what
        self.required = frozenset(required.split())
        self.allowed = self.required | frozenset(optional.split())

    def of(self, value: Any) -> dict[str, Any]:
        """Check that `value` is an object with these members and no others."""
        members = json_object(value, self.what)
        names = members.keys()
        if not names >= self.required:
            missing = listed(self.required - names)
            raise ArtifactError("schema", f"{self.what} lacks member {missing}")
        if not names <= self.allowed:
            unknown = listed(names - self.allowed)
            raise ArtifactError("schema", f"{self.what} has unknown member {unknown}")
        return members


def check_each(
    values: Sequence[Any], what: str, check: Callable[..., Checked], *arguments: Any
) -> tuple[Checked, ...]:
    """Check every item of an array; an error gets the item's place in front."""
    checked: list[Checked] = []
    try:
        for value in values:
            item = check(value, *arguments)
            checked.append(item)
    except ArtifactError as error:
        error.args = (f"{what}[{len(checked)}]: {error}",)
        raise
    return tuple(checked)


def check_named(
    value: Any, what: str, check: Callable[..., Checked], *arguments: Any
) -> dict[str, Checked]:
    """Check every member of an object whose names are ids, in the same way."""
    members = json_object(value, what)
    checked: dict[str, Checked] = {}
    name = ""
    try:
        for name, member in members.items():
            checked[identifier(name, "name")] = check(member, *arguments)
    except ArtifactError as error:
        error.args = (f"{what}[{name!r}]: {error}",)
        raise
    return checked


def listed(names: Iterable[str]) -> str:
    """Names for a message, quoted and sorted."""
    return ", ".join(repr(name) for name in sorted(names))


def json_object(value: Any, what: str) -> dict[str, Any]:
    """Check that `value`, called `what` in the message, is an object."""
    if not isinstance(value, dict):
        raise _wrong_type(what, "an object", value)
    return value


def json_array(value: Any, what: str) -> list[Any]:
    """Check that a value is an array."""
    if not isinstance(value, list):
        raise _wrong_type(what, "an array", value)
    return value


def open_object(value: Any, what: str) -> dict[str, Any]:
    """Check that a value is an object whose inside no schema describes."""
    members = json_object(value, what)
    check_open_value(members, what)
    return members


def identifier(value: Any, what: str) -> str:
    """Check that a value is an id: a non-empty string of valid Unicode without U+0000."""
    if not isinstance(value, str):
        raise _wrong_type(what, "a string", value)
    if not value or "\0" in value or not is_text(value):
        raise ArtifactError(
            "schema",
            f"{what} is not an id",
            expected="a non-empty string of valid Unicode without U+0000",
            found=repr(value),
        )
    return value


def is_sibling_name(value: Any) -> bool:
    """Whether a value is the plain name of a file in the same folder."""
    return (
        isinstance(value, str)
        and value not in ("", ".", "..")
        and not any(character in value for character in "/\\\0")
        and is_text(value)
    )


def u64(value: Any, what: str, minimum: int = 0) -> int:
    """Check that a value is a JSON integer from `minimum` to 2^64-1."""
    # bool is a subclass of int and 256.0 equals 256; neither is a JSON integer.
    if type(value) is not int:
        raise _wrong_type(what, "an integer", value)
    if not minimum <= value <= U64_MAX:
        raise ArtifactError(
            "schema", f"{what} is out of range", expected=f"{minimum} to 2^64-1", found=value
        )
    return value


def _wrong_type(what: str, expected: str, value: Any) -> ArtifactError:
    names = {dict: "an object", list: "an array", str: "a string", type(None): "null"}
    found = names.get(type(value), repr(value))
    return ArtifactError("schema", f"{what} has the wrong type", expected=expected, found=found)
