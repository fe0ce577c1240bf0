"""Tool calls in streamed content: the calls at its end, or text if they are not well-formed.

Calls are the longest end of the content that consists of complete regions and white space only.
Text flows until a region may begin and is then held back until the region is refuted or the
content ends. What was held back for nothing is released unchanged.
"""

from __future__ import annotations

from ninfer_runtime.engine.request import Tool
from ninfer_runtime.text.parsers.tool_regions import (
    REGION,
    ParameterTags,
    ParsedCall,
    Refusal,
    RegionReader,
    schemas_by_name,
)
from ninfer_runtime.text.partial import WHITESPACE, partial_suffix


class ToolCallParser:
    """Separates calls from content, with the same result for any partition of the text.

    Args:
        tools: The tools that can be called.
        only_one: The content ends right after the first complete region.

    Attributes:
        refusal: Why the last text that looked like calls stayed text; None if none did.
    """

    def __init__(self, tools: tuple[Tool, ...], *, only_one: bool = False) -> None:
        self.refusal: Refusal | None = None
        self._tools = schemas_by_name(tools)
        self._only_one = only_one
        self._held = ""
        self._reader: RegionReader | None = None

    @property
    def is_full(self) -> bool:
        """Whether the content has ended with the one call that it may have."""
        return self._reader is not None and self._reader.is_full

    def feed(self, text: str) -> str:
        """Take a piece of content; returns the text that is certain to be no call.

        Text behind the end of the content is dropped.
        """
        if self.is_full:
            return ""
        self._held += text
        released = ""
        while True:
            if self._reader is None:
                released += self._seek()
            if self._reader is None:
                return released
            self._reader.advance(self._held)
            if self._reader.is_full:
                self._held = self._held[: self._reader.position]
            if self._reader.refusal is None:
                return released
            self.refusal = self._reader.refusal
            released += self._release(self._reader.position)
            self._reader = None

    def finish(self) -> tuple[str, tuple[ParsedCall, ...]]:
        """End the content; returns the rest of the text and the calls behind it."""
        text, self._held = self._held, ""
        reader, self._reader = self._reader, None
        while reader is not None:
            reader.advance(text)
            if reader.is_complete(text):
                most = 1 if self._only_one else None
                return text[: reader.start].rstrip(WHITESPACE), tuple(reader.calls[:most])
            self.refusal = reader.refusal or Refusal.MALFORMED_STRUCTURE
            start = text.find(REGION, reader.position)
            reader = RegionReader(self._tools, start, reader.tags) if start >= 0 else None
        return text, ()

    def _seek(self) -> str:
        """Release text up to where a region begins, or could begin with what follows."""
        start = self._held.find(REGION)
        certain = len(self._held) - partial_suffix(self._held, (REGION,))
        released = self._release(start if start >= 0 else certain)
        if start >= 0:
            self._reader = RegionReader(
                self._tools, start - len(released), ParameterTags(), only_one=self._only_one
            )
        return released

    def _release(self, end: int) -> str:
        """Release held text before `end`, but not white space that may precede a region."""
        released = self._held[:end].rstrip(WHITESPACE)
        self._held = self._held[len(released) :]
        return released
