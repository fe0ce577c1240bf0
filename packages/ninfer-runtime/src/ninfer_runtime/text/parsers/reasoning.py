"""Where the model's thoughts end and its answer begins."""

from __future__ import annotations

from typing import Literal

from ninfer_runtime.engine.request import Channel
from ninfer_runtime.text.partial import WHITESPACE, partial_suffix

OPEN = "<think>"
CLOSE = "</think>"

_ENDS = (CLOSE, "\n" + CLOSE)
"""How thoughts end; a newline before the marker is part of it."""

_AFTER_CLOSE = " \t\r\n"
"""What follows a marker that is meant; any other text after it makes it a quotation."""

Piece = tuple[Channel, str]


def find_close(text: str, start: int = 0) -> int:
    """Return where the first ``</think>`` lies that ends the thoughts; -1 if none does.

    It is the first one that white space or the end of the text follows.
    """
    position = text.find(CLOSE, start)
    while position >= 0:
        after = position + len(CLOSE)
        if after == len(text) or text[after] in _AFTER_CLOSE:
            return position
        position = text.find(CLOSE, after)
    return -1


def split_history(content: str) -> tuple[str | None, str]:
    """Split an assistant's earlier turn that holds its thoughts in the content.

    Args:
        content: The turn, with or without the opening marker.

    Returns:
        The thoughts, None if there are none, and the answer.
    """
    close = find_close(content)
    if close < 0:
        close = content.find(CLOSE)
    if close < 0:
        return None, content
    thoughts = content[:close].lstrip(WHITESPACE).removeprefix(OPEN)
    return thoughts.strip("\n"), content[close + len(CLOSE) :].lstrip("\n")


class ReasoningParser:
    """Sends streamed text to the reasoning or the content channel.

    Args:
        starts_in_reasoning: The text begins inside a think block. If not, all of it is content.

    Attributes:
        state: ``open`` inside the think block; ``deciding`` behind a marker that may turn out to
            be a quotation; ``content`` afterwards.
    """

    def __init__(self, *, starts_in_reasoning: bool) -> None:
        self.state: Literal["open", "deciding", "content"] = (
            "open" if starts_in_reasoning else "content"
        )
        self._held = ""
        self._strip = False

    def feed(self, text: str) -> list[Piece]:
        """Take a piece of text; returns what is certain, in order."""
        if self.state == "content":
            return self._content(text)
        held = self._held + text
        close = find_close(held)
        if close >= 0 and close + len(CLOSE) < len(held):
            return self._close(held, close)
        if close >= 0:
            self.state = "deciding"
            undecided = close - held[:close].endswith("\n")
        else:
            self.state = "open"
            undecided = len(held) - partial_suffix(held, _ENDS)
        self._held = held[undecided:]
        return _pieces("reasoning", held[:undecided])

    def flush(self) -> list[Piece]:
        """End the text; a marker at its very end ends the thoughts."""
        held, self._held = self._held, ""
        if self.state == "deciding":
            return self._close(held, find_close(held))
        return _pieces("reasoning", held)

    def _close(self, held: str, close: int) -> list[Piece]:
        self.state, self._held, self._strip = "content", "", True
        thoughts = held[:close].removesuffix("\n")
        return _pieces("reasoning", thoughts) + self._content(held[close + len(CLOSE) :])

    def _content(self, text: str) -> list[Piece]:
        """Return content without the white space between the marker and the answer."""
        if self._strip:
            text = text.lstrip(WHITESPACE)
            self._strip = not text
        return _pieces("content", text)


def _pieces(channel: Channel, text: str) -> list[Piece]:
    return [(channel, text)] if text else []
