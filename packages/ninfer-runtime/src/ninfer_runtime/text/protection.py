"""Data in prompts: a control token comes from the template and never from what a caller wrote.

While a template runs, the characters with which spellings of control tokens begin and end are
replaced in the caller's data by marks that occur nowhere else, so that data can neither begin nor
end a control token, whatever the template writes around it, cuts off or removes. Afterwards the
text is cut at the control tokens, which are the template's, and the characters are put back in the
pieces between.

A template that writes both ends of a spelling itself and puts data between them, as in
``<|{{ message.role }}|>``, means what it does; roles are checked before they get here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ninfer_runtime.errors import RequestError, RequestErrorKind
from ninfer_runtime.text.json_values import MAX_DEPTH

MARKS = "".join(map(chr, range(0x1FB00, 0x1FB3C)))
"""What may stand for a replaced character: block graphics of old computers.

They are rare, and unlike noncharacters they are printable, so that they survive in what a template
writes as Python spells it.
"""

_DIRECTIVE = re.compile(r"<\|think_[a-z]+\|>")
"""Tags by which people steer some templates; they work only if the template sees them whole."""


def _strings(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield every string in JSON-like data, names of members included."""
    if depth > MAX_DEPTH:
        raise RequestError(
            RequestErrorKind.INVALID_PROMPT,
            f"data of the prompt is nested more than {MAX_DEPTH} levels deep",
        )
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _strings(name, depth)
            yield from _strings(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item, depth + 1)


class DataProtection:
    """Replaces, for one prompt, the characters in data that could begin or end a control token.

    Args:
        spellings: Spellings of all control tokens.
        data: Everything of the caller's that the template can read, and the template's own
            source.

    Raises:
        RequestError: ``invalid_prompt``: the data is nested too deeply, or it uses so many of
            `MARKS` that too few are left.
    """

    def __init__(self, spellings: Iterable[str], data: Any) -> None:
        self._spellings = frozenset(spellings)
        strings = list(_strings(data))
        free = [mark for mark in MARKS if not any(mark in text for text in strings)]
        ends = sorted({spelling[end] for spelling in self._spellings for end in (0, -1)})
        if len(free) < len(ends):
            raise RequestError(
                RequestErrorKind.INVALID_PROMPT,
                f"the prompt's data uses nearly all characters from U+{ord(MARKS[0]):X} to "
                f"U+{ord(MARKS[-1]):X}, of which the renderer needs {len(ends)} for itself",
            )
        marks = dict(zip(ends, free, strict=False))
        self._hide = str.maketrans(marks)
        self._show = str.maketrans({mark: character for character, mark in marks.items()})

    def hide(self, text: str) -> str:
        """Return data as the template may see it."""
        return text.translate(self._hide)

    def hide_except_directives(self, text: str) -> str:
        """Return data as the template may see it, with the tags that steer thinking whole."""
        pieces: list[str] = []
        end = 0
        for match in _DIRECTIVE.finditer(text):
            if not any(spelling.startswith(match.group()) for spelling in self._spellings):
                pieces += (self.hide(text[end : match.start()]), match.group())
                end = match.end()
        return "".join(pieces) + self.hide(text[end:])

    def hide_all(self, value: Any) -> Any:
        """Return JSON-like data with all strings hidden; mappings become dicts in their order."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {self.hide_all(name): self.hide_all(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hide_all(item) for item in value]
        return value

    def show(self, text: str) -> str:
        """Return rendered text as it reads."""
        return text.translate(self._show)
