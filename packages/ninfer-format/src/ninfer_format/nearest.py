"""Suggesting what a mistyped name may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Hint with the known name nearest to `name`, None if none is near."""
    near = get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}?" if near else None
