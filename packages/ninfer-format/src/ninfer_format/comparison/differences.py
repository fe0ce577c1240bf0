"""One difference between two artifacts, as a row of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Section = Literal["components", "objects", "bindings", "uses", "metadata", "provenance"]
Change = Literal["added", "removed", "changed"]

Member = TypeVar("Member")

_MOST_CHARACTERS = 60
"""Longest value that a message shows whole."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that only one artifact has, or that is not the same in both.

    Attributes:
        section: The part of the directory.
        change: What happened on the way from the first to the second artifact.
        name: Component, object, parameter, use or member.
        detail: What has changed, in words; empty unless `change` is ``changed``.
    """

    section: Section
    change: Change
    name: str
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """The difference as a JSON object."""
        return {
            "section": self.section,
            "change": self.change,
            "name": self.name,
            "detail": self.detail or None,
        }


def compare_named(
    section: Section,
    first: Mapping[str, Member],
    second: Mapping[str, Member],
    details: Callable[[Member, Member], Iterator[str]],
) -> Iterator[Difference]:
    """Compare what two directories list under names.

    Args:
        section: Where it is.
        first: By name, in the first artifact.
        second: By name, in the second.
        details: Says what has changed between two things of the same name.
    """
    for name, member in first.items():
        if name not in second:
            yield Difference(section, "removed", name)
            continue
        for detail in details(member, second[name]):
            yield Difference(section, "changed", name, detail)
    for name in second:
        if name not in first:
            yield Difference(section, "added", name)


def changed_members(first: Any, second: Any, path: str = "") -> Iterator[str]:
    """Say which members of two JSON values differ, with their path and both values."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for name in [*first, *(name for name in second if name not in first)]:
            below = f"{path}.{name}" if path else name
            if name not in second:
                yield f"{below}: {_shown(first[name])} -> (absent)"
            elif name not in first:
                yield f"{below}: (absent) -> {_shown(second[name])}"
            else:
                yield from changed_members(first[name], second[name], below)
    elif not _same(first, second):
        prefix = f"{path}: " if path else ""
        yield f"{prefix}{_shown(first)} -> {_shown(second)}"


def _same(first: Any, second: Any) -> bool:
    """Whether two JSON values are equal, whatever the order of their members."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(_same(first[k], second[k]) for k in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_same, first, second))
    # In JSON neither 1 and 1.0 nor 1 and true are the same.
    return repr(first) == repr(second)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."
