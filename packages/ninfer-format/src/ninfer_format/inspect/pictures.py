"""Small pictures made of characters: a bar, and a histogram in one line."""

from __future__ import annotations

from collections.abc import Sequence

_EIGHTHS = "▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"
_ASCII_HEIGHTS = ".:-=+*#@"


def bar(fraction: float, width: int, encoding: str) -> str:
    """A horizontal bar.

    Args:
        fraction: Length of the bar as a part of `width`, 0 to 1; a little more than 0 is visible.
        width: Characters of a full bar.
        encoding: What the characters will be encoded in; without block characters in it the bar
            is drawn in ASCII.
    """
    if not _can_show(_EIGHTHS, encoding):
        return "#" * max(round(fraction * width), 1 if fraction > 0 else 0)
    eighths = max(round(fraction * width * 8), 1 if fraction > 0 else 0)
    full, rest = divmod(eighths, 8)
    return _EIGHTHS[-1] * full + (_EIGHTHS[rest - 1] if rest else "")


def histogram(counts: Sequence[int], encoding: str) -> str:
    """One character for each count, whose height is its part of the largest; 0 is a space."""
    heights = _HEIGHTS if _can_show(_HEIGHTS, encoding) else _ASCII_HEIGHTS
    largest = max(counts, default=0)
    return "".join(
        heights[(count * len(heights) - 1) // largest] if count else " " for count in counts
    )


def _can_show(characters: str, encoding: str) -> bool:
    try:
        characters.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
