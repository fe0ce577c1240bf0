"""Comparing what the directories of two artifacts say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ninfer_format.comparison.differences import Difference, changed_members, compare_named
from ninfer_format.container.schema import Directory, ObjectRecord


def compare_directories(first: Directory, second: Directory) -> Iterator[Difference]:
    """Find the differences between two directories.

    Where an object lies and how the payload is cut into files is not compared: it changes nothing
    about what the artifact holds.
    """
    yield from compare_named(
        "components", _as_json(first.components), _as_json(second.components), changed_members
    )
    yield from compare_named("objects", _records(first), _records(second), changed_members)
    yield from compare_named(
        "bindings", _as_json(first.bindings), _as_json(second.bindings), changed_members
    )
    for difference in compare_named("uses", _uses(first), _uses(second), changed_members):
        yield replace(difference, name=difference.name.replace("\0", " at "))
    yield from compare_named("metadata", first.metadata, second.metadata, changed_members)
    yield from compare_named("provenance", first.provenance, second.provenance, changed_members)


def content(record: ObjectRecord) -> dict[str, Any]:
    """What a record says about an object apart from its place."""
    return {name: value for name, value in record.to_json().items() if name != "offset"}


def _records(directory: Directory) -> dict[str, dict[str, Any]]:
    return {record.id: content(record) for record in directory.objects}


def _as_json(items: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: item.to_json() for name, item in items.items()}


def _uses(directory: Directory) -> dict[str, dict[str, Any]]:
    # No name of the directory has a U+0000 in it.
    return {f"{use.parameter}\0{use.input}": use.to_json() for use in directory.uses}
