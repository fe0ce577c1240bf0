"""The grammar of tool calls, read step by step from text that is still growing.

::

    <tool_call> <function=NAME> (<parameter=KEY>VALUE</parameter>)* </function> </tool_call>

with white space between the tags. VALUE ends at the closing tag that matches: complete
``<parameter=...>...</parameter>`` pairs in it belong to it (HTTP serving specification,
section 7).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Any

from ninfer_runtime.engine.request import Tool
from ninfer_runtime.text.parsers.arguments import (
    OMITTED,
    parameter_types,
    strip_framing,
    typed_value,
)
from ninfer_runtime.text.partial import WHITESPACE

REGION = "<tool_call>"
_END_REGION = "</tool_call>"
_FUNCTION = "<function="
_END_FUNCTION = "</function>"
_PARAMETER = "<parameter="
_END_PARAMETER = "</parameter>"

MAX_NAME_LENGTH = 128

_NAME = re.compile(r"[A-Za-z0-9_-]*")
_KEY = re.compile(r"[^<>\r\n]*")
_SPACE = re.compile(f"[{WHITESPACE}]*")
_PARAMETER_TAG = re.compile(r"<parameter=[^<>\r\n]+>|</parameter>")
_UNFINISHED_TAG = re.compile(r"<[^<>\r\n]*\Z")


class Refusal(StrEnum):
    """Why text that looks like calls is none; values are the names in lower case."""

    MALFORMED_STRUCTURE = auto()
    DUPLICATE_PARAMETER = auto()
    INVALID_TOOL_NAME = auto()
    UNDECLARED_TOOL = auto()
    TRAILING_CONTENT = auto()


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call, its arguments typed, in the order in which the model wrote them."""

    name: str
    arguments: Mapping[str, Any]


class ParameterTags:
    """Which closing tag belongs to which parameter, for all parameters of a growing text.

    One pass over the text serves every attempt to read regions from it.
    """

    def __init__(self) -> None:
        self._scanned = 0
        self._open: list[int] = []
        self._closes: dict[int, int] = {}

    def close_of(self, text: str, opening: int) -> int | None:
        """Return where the closing tag starts; None if it is not there yet.

        Args:
            text: What was given before, possibly with more at its end.
            opening: Where the opening tag starts.
        """
        for tag in _PARAMETER_TAG.finditer(text, self._scanned):
            self._scanned = tag.end()
            if tag.group() != _END_PARAMETER:
                self._open.append(tag.start())
            elif self._open:
                self._closes[self._open.pop()] = tag.start()
        last = text.rfind("<", self._scanned)
        unfinished = last >= 0 and _UNFINISHED_TAG.match(text, last)
        self._scanned = last if unfinished else len(text)
        return self._closes.get(opening)


class RegionReader:
    """Reads regions from one ``<tool_call>`` on.

    Args:
        tools: JSON schemas of the arguments by name of the tool; other names are refused.
        start: Where the ``<tool_call>`` lies in the text.
        tags: Shared by all readers of the same text.
        only_one: Read no further than to the end of the first region.

    Attributes:
        start: As given.
        position: Everything before it was understood. After a refusal: where the fault lies; no
            ``<tool_call>`` between `start` and there begins a sequence of regions either.
        refusal: Set once the text cannot be a sequence of regions.
        calls: The regions that are complete.
    """

    def __init__(
        self,
        tools: Mapping[str, Mapping[str, Any] | None],
        start: int,
        tags: ParameterTags,
        *,
        only_one: bool = False,
    ) -> None:
        self.start = start
        self.position = start
        self.refusal: Refusal | None = None
        self.calls: list[ParsedCall] = []
        self.tags = tags
        self._tools = tools
        self._only_one = only_one
        self._name = ""
        self._key = ""
        self._opening = 0
        self._values: dict[str, str] = {}
        self._step: Callable[[str], bool] = self._read_region

    def advance(self, text: str) -> None:
        """Read as far as `text`, which grows at its end only, allows."""
        while self.refusal is None and not self.is_full and self._step(text):
            pass

    @property
    def is_full(self) -> bool:
        """Whether the one region that it may read is complete; `position` is its end."""
        return self._only_one and self._is_between_regions

    def is_complete(self, text: str) -> bool:
        """Whether `text` from `start` on is regions and white space only."""
        return self.refusal is None and self._is_between_regions and self.position == len(text)

    @property
    def _is_between_regions(self) -> bool:
        return bool(self.calls) and self._step == self._read_region

    # Each step returns whether it got further. If not, the text ends too early or is refused.

    def _read_region(self, text: str) -> bool:
        reason = Refusal.TRAILING_CONTENT if self.calls else Refusal.MALFORMED_STRUCTURE
        if self._tag(text, (REGION,), reason) is None:
            return False
        self._step = self._read_function
        return True

    def _read_function(self, text: str) -> bool:
        if self._tag(text, (_FUNCTION,)) is None:
            return False
        self._step = self._read_name
        return True

    def _read_name(self, text: str) -> bool:
        name = self._word(_NAME, text)
        if len(name) > MAX_NAME_LENGTH:
            return self._refuse(Refusal.INVALID_TOOL_NAME)
        end = self.position + len(name)
        if end == len(text):
            return False
        if not name or text[end] != ">":
            return self._refuse(Refusal.INVALID_TOOL_NAME)
        if name not in self._tools:
            return self._refuse(Refusal.UNDECLARED_TOOL)
        self._name, self._values, self.position = name, {}, end + 1
        self._step = self._read_parameter
        return True

    def _read_parameter(self, text: str) -> bool:
        tag = self._tag(text, (_PARAMETER, _END_FUNCTION))
        if tag is None:
            return False
        if tag == _PARAMETER:
            self._opening = self.position - len(tag)
            self._step = self._read_key
        else:
            self.calls.append(ParsedCall(self._name, self._arguments()))
            self._step = self._read_end
        return True

    def _read_key(self, text: str) -> bool:
        key = self._word(_KEY, text)
        end = self.position + len(key)
        if end == len(text):
            return False
        if not key or text[end] != ">":
            return self._refuse(Refusal.MALFORMED_STRUCTURE)
        if key in self._values:
            return self._refuse(Refusal.DUPLICATE_PARAMETER)
        self._key, self.position = key, end + 1
        self._step = self._read_value
        return True

    def _read_value(self, text: str) -> bool:
        close = self.tags.close_of(text, self._opening)
        if close is None:
            return False
        self._values[self._key] = strip_framing(text[self.position : close])
        self.position = close + len(_END_PARAMETER)
        self._step = self._read_parameter
        return True

    def _read_end(self, text: str) -> bool:
        if self._tag(text, (_END_REGION,)) is None:
            return False
        self._step = self._read_region
        return True

    def _tag(
        self,
        text: str,
        tags: tuple[str, ...],
        reason: Refusal = Refusal.MALFORMED_STRUCTURE,
    ) -> str | None:
        """Read white space and one of `tags`; None if there is none, or not all of it yet."""
        space = _SPACE.match(text, self.position)
        self.position = space.end() if space else self.position
        for tag in tags:
            if text.startswith(tag, self.position):
                self.position += len(tag)
                return tag
        found = text[self.position : self.position + max(map(len, tags))]
        if not any(tag.startswith(found) for tag in tags):
            self._refuse(reason)
        return None

    def _word(self, pattern: re.Pattern[str], text: str) -> str:
        match = pattern.match(text, self.position)
        return match.group() if match else ""

    def _refuse(self, reason: Refusal) -> bool:
        self.refusal = reason
        return False

    def _arguments(self) -> dict[str, Any]:
        schema = self._tools[self._name]
        typed = {
            key: typed_value(value, parameter_types(schema, key))
            for key, value in self._values.items()
        }
        return {key: value for key, value in typed.items() if value is not OMITTED}


def schemas_by_name(tools: tuple[Tool, ...]) -> dict[str, Mapping[str, Any] | None]:
    """Return what `RegionReader` needs to know about tools."""
    return {tool.name: tool.parameters for tool in tools}
