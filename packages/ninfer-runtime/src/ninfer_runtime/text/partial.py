"""Text that may still become something else: how much of an end has to be held back."""

from __future__ import annotations

from collections.abc import Sequence

WHITESPACE = " \t\r\n\v\f"
"""What counts as white space around markers in generated text."""


def partial_suffix(text: str, markers: Sequence[str]) -> int:
    """Return the length of the longest end of `text` that is a proper prefix of a marker."""
    longest = max((len(marker) for marker in markers), default=0)
    for start in range(max(0, len(text) - longest + 1), len(text)):
        length = len(text) - start
        if any(
            len(marker) > length
            and marker.startswith(text[start])
            and text.endswith(marker[:length])
            for marker in markers
        ):
            return length
    return 0
