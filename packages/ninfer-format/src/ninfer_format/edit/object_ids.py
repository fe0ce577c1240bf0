"""Ids for objects that come into an artifact."""

from __future__ import annotations

from collections.abc import Collection


def free_id(wanted: str, taken: Collection[str]) -> str:
    """`wanted`, with as many underscores behind it as it takes to be new."""
    while wanted in taken:
        wanted += "_"
    return wanted
