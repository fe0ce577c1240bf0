"""JSON values that keep the spelling of numbers.

A call that the model wrote is sent back to it in the next turn and has to become the same tokens
again. Python's own numbers would turn ``1.10`` into ``1.1`` and ``1e400`` into infinity.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

MAX_DEPTH = 96
"""Levels of nesting that a value may have; bounds the recursion of everything that walks one."""


class SpelledNumber(float):
    """A number whose spelling Python would not reproduce.

    Args:
        spelling: The number as valid JSON; `str` and `write_json` give it back.
    """

    spelling: str

    def __new__(cls, spelling: str) -> SpelledNumber:
        """Make the nearest float, which may be infinite, and remember the spelling."""
        number = super().__new__(cls, spelling)
        number.spelling = spelling
        return number

    def __str__(self) -> str:
        """Return the spelling."""
        return self.spelling

    __repr__ = __str__

    def __reduce__(self) -> tuple[type[SpelledNumber], tuple[str]]:
        """Pickle and copy through the spelling."""
        return SpelledNumber, (self.spelling,)


def _integer(spelling: str) -> int | SpelledNumber:
    limit = sys.get_int_max_str_digits()
    if (limit and len(spelling) > limit) or spelling == "-0":
        return SpelledNumber(spelling)
    return int(spelling)


def _real(spelling: str) -> float:
    number = float(spelling)
    return number if repr(number) == spelling else SpelledNumber(spelling)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"key {twice!r} appears twice in one object")
    return members


def _check_depth(value: Any) -> None:
    """Refuse a parsed value that exceeds `MAX_DEPTH`, going through it level by level."""
    level = [value] if isinstance(value, (dict, list)) else []
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"the JSON value is nested more than {MAX_DEPTH} levels deep")
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, (dict, list))
        ]


def read_json(text: str, *, unique_names: bool = False) -> Any:
    """Parse JSON strictly: no NaN and no lone surrogates.

    Args:
        text: One JSON value; white space around it is allowed.
        unique_names: Refuse equal names in one object, of which otherwise the last counts.

    Returns:
        None, bool, int, float, `SpelledNumber`, str, list or dict.

    Raises:
        ValueError: It is not valid JSON, or the nesting exceeds `MAX_DEPTH`.
    """
    try:
        value = json.loads(
            text,
            parse_int=_integer,
            parse_float=_real,
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique_members if unique_names else None,
        )
    except RecursionError as error:
        raise ValueError(f"the JSON value is nested more than {MAX_DEPTH} levels deep") from error
    _check_depth(value)
    written = json.dumps(value, ensure_ascii=False)
    try:
        written.encode()
    except UnicodeEncodeError as error:
        half = written[error.start]
        raise ValueError(f"{half!r} is half of a surrogate pair, which is no character") from error
    return value


def write_json(
    value: Any,
    *,
    separators: tuple[str, str] = (",", ":"),
    indent: int | None = None,
    sort_keys: bool = False,
) -> str:
    """Write a JSON value; members keep their order and numbers their spelling.

    Args:
        value: None, bool, int, float, str, and mappings and sequences of these.
        separators: Put between items and between a name and its value.
        indent: Spaces for each level, one item a line; None writes one line.
        sort_keys: Sort members by name.

    Raises:
        ValueError: A number is not finite, or the nesting exceeds `MAX_DEPTH`.
        TypeError: A value has no JSON form.
    """
    return _Writer(separators, indent, sort_keys).write(value, 0)


class _Writer:
    """Writes one value; holds the style so that the recursion need not hand it on."""

    def __init__(self, separators: tuple[str, str], indent: int | None, sort_keys: bool) -> None:
        self.item_separator, self.name_separator = separators
        self.indent = indent
        self.sort_keys = sort_keys

    def write(self, value: Any, level: int) -> str:
        if isinstance(value, str):
            return json.dumps(value, ensure_ascii=False)
        if isinstance(value, SpelledNumber):
            return value.spelling
        if value is None or isinstance(value, (bool, int, float)):
            return json.dumps(value, allow_nan=False)
        if isinstance(value, Mapping):
            names = sorted(value) if self.sort_keys else value
            return self._block(
                "{}", names, lambda name: self._member(name, value[name], level), level
            )
        if isinstance(value, (list, tuple)):
            return self._block("[]", value, lambda item: self.write(item, level + 1), level)
        raise TypeError(f"a value of type {type(value).__name__} has no JSON form")

    def _member(self, name: Any, value: Any, level: int) -> str:
        if not isinstance(name, str):
            raise TypeError(f"the member name {name!r} is not a string")
        return self.write(name, level) + self.name_separator + self.write(value, level + 1)

    def _block(
        self, brackets: str, items: Iterable[Any], write: Callable[[Any], str], level: int
    ) -> str:
        if level >= MAX_DEPTH:
            raise ValueError(f"the JSON value is nested more than {MAX_DEPTH} levels deep")
        parts = [write(item) for item in items]
        if self.indent is None or not parts:
            return brackets[0] + self.item_separator.join(parts) + brackets[1]
        inner = "\n" + " " * self.indent * (level + 1)
        outer = "\n" + " " * self.indent * level
        return brackets[0] + inner + (self.item_separator + inner).join(parts) + outer + brackets[1]
