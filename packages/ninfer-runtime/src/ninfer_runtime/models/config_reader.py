"""Typed reading of one JSON object of a model configuration, with errors that name the key."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Any, TypeGuard

import numpy as np

from ninfer_format.errors import UnsupportedConfigError

LARGEST_INTEGER = 2**32 - 1


class Absent(Enum):
    """Stands for a member that a configuration does not have."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "<absent>"


ABSENT = Absent.ABSENT


class ConfigReader:
    """Reads members of one JSON object and refuses what has another type or value.

    Args:
        values: The JSON object.
        scope: Where the object stands in the configuration, put before every key of an error.
    """

    def __init__(self, values: object, scope: str = "") -> None:
        if not isinstance(values, Mapping):
            raise UnsupportedConfigError(scope, values, expected="an object")
        self.values: Mapping[str, Any] = values
        self.scope = scope

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def key(self, name: str) -> str:
        """The full key of member `name`."""
        return f"{self.scope}.{name}" if self.scope else name

    def refuse(self, name: str, expected: str) -> UnsupportedConfigError:
        """The error for member `name`, to be raised by the caller."""
        return UnsupportedConfigError(
            self.key(name), self.values.get(name, ABSENT), expected=expected
        )

    def refuse_other_members(self, known: Collection[str]) -> None:
        """Refuse the object if it has a member that is not in `known`."""
        for name in self.values:
            if name not in known:
                raise self.refuse(name, f"only the members {', '.join(sorted(known))}")

    def section(self, name: str) -> ConfigReader:
        """The object that member `name` holds."""
        if not isinstance(self.values.get(name), Mapping):
            raise self.refuse(name, "an object")
        return ConfigReader(self.values[name], self.key(name))

    def integer(self, name: str, default: int | Absent = ABSENT, *, minimum: int = 1) -> int:
        """An integer in ``minimum..2**32 - 1``; a boolean is none."""
        value = self.values.get(name, default)
        if not _is_integer(value, minimum):
            raise self.refuse(name, f"an integer {minimum}..{LARGEST_INTEGER}")
        return int(value)

    def real(self, name: str, default: float | Absent = ABSENT) -> float:
        """A positive number, rounded to binary32 as artifacts store it."""
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(name, "a positive number")
        rounded = round_to_binary32(value)
        if not (math.isfinite(rounded) and rounded > 0):
            raise self.refuse(name, "a number that is positive and finite in binary32")
        return rounded

    def boolean(self, name: str, default: bool | Absent = ABSENT) -> bool:
        """A boolean."""
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def integers(self, name: str, count: int, *, minimum: int) -> tuple[int, ...]:
        """A list of exactly `count` integers."""
        value = self.values.get(name)
        if (
            not _is_list(value)
            or len(value) != count
            or not all(_is_integer(item, minimum) for item in value)
        ):
            raise self.refuse(name, f"a list of {count} integers of at least {minimum}")
        return tuple(value)

    def choices(self, name: str, count: int, allowed: Sequence[str]) -> tuple[str, ...]:
        """A list of exactly `count` strings, each one of `allowed`."""
        value = self.values.get(name)
        if not _is_list(value) or len(value) != count:
            raise self.refuse(name, f"a list of {count} strings")
        for index, item in enumerate(value):
            if item not in allowed:
                raise UnsupportedConfigError(
                    f"{self.key(name)}[{index}]", item, expected=" or ".join(allowed)
                )
        return tuple(value)

    def constant(self, name: str, value: object) -> None:
        """Refuse the object unless member `name` is there and equals `value`."""
        if name not in self.values or not _same(self.values[name], value):
            raise self.refuse(name, repr(value))

    def constant_if_present(self, name: str, value: object) -> None:
        """Refuse the object if member `name` is there and does not equal `value`."""
        if name in self.values:
            self.constant(name, value)


def round_to_binary32(value: float) -> float:
    """Round to the nearest binary32 number; beyond its range the result is infinite."""
    with np.errstate(over="ignore"):
        try:
            return float(np.float32(value))
        except OverflowError:  # a Python integer beyond binary64
            return math.inf


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_integer(value: object, minimum: int) -> bool:
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and minimum <= value <= LARGEST_INTEGER
    )


def _same(found: object, expected: object) -> bool:
    """Equality of JSON values, in which ``true`` is not 1 and a list may be any sequence."""
    if isinstance(found, bool) != isinstance(expected, bool):
        return False
    if isinstance(expected, list) and isinstance(found, Sequence) and not isinstance(found, str):
        return list(found) == expected
    return found == expected
