"""Text from a file, made safe to show on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Escape every character that would break a line or that a terminal would act upon."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
