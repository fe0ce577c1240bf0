"""Stop strings in streamed text."""

from __future__ import annotations

from collections.abc import Sequence

from ninfer_format.errors import UsageError
from ninfer_runtime.text.partial import partial_suffix


class StopMatcher:
    """Finds the first stop string in text that arrives in pieces.

    The match that starts first wins, and the longest of those that start there. Text that may
    still become a match is held back, so the result is the same for any partition of the text.

    Args:
        strings: The stop strings.

    Raises:
        UsageError: A stop string is empty.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        if not all(strings):
            raise UsageError("a stop string is empty; it must have at least one character")
        self._strings = tuple(strings)
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """Take a piece of text.

        Returns:
            The text that is certain to lie before any match, and the stop string that matched.
            After a match the rest of the text is dropped.
        """
        held = self._held + text
        start, matched = self._first_match(held)
        undecided = len(held) - partial_suffix(held, self._strings)
        if matched is not None and start < undecided:
            self._held = ""
            return held[:start], matched
        self._held = held[undecided:]
        return held[:undecided], None

    def flush(self) -> tuple[str, str | None]:
        """End the text: release what was held, up to a match that only waited for a longer one."""
        held, self._held = self._held, ""
        start, matched = self._first_match(held)
        return held[:start], matched

    def _first_match(self, text: str) -> tuple[int, str | None]:
        """Return where the first match starts and what it is; the end of the text if none."""
        found = [(text.find(string), -len(string), string) for string in self._strings]
        first = min((match for match in found if match[0] >= 0), default=None)
        return (len(text), None) if first is None else (first[0], first[2])
