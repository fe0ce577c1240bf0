"""Shows an answer while it is generated: content on stdout, reasoning and progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from ninfer_format.commandline import Progress, Terminal
from ninfer_runtime.text.json_values import write_json

if TYPE_CHECKING:
    from ninfer_runtime.engine.request import GenerationStart, OutputDelta, PromptProgress, ToolCall


class AnswerPrinter:
    """The output sink of the ``ninfer`` command.

    Args:
        terminal: Where to print.
        show_content: Print the content; not wanted where a document holds it.
    """

    def __init__(self, terminal: Terminal, *, show_content: bool) -> None:
        self._terminal = terminal
        self._show_content = show_content
        self._content = _Lines("stdout")
        self._reasoning = _Lines("stderr")
        self._progress: Progress | None = None

    def start(self, event: GenerationStart) -> None:
        """Nothing to show yet."""

    def progress(self, event: PromptProgress) -> None:
        """Show a bar for prompts of more than one chunk."""
        if self._progress is None and 0 < event.processed < event.total:
            self._progress = Progress(self._terminal, "reading the prompt", total=event.total)
            self._progress.__enter__()
        if self._progress is not None:
            self._progress.advance(event.processed - self._progress.done)
            if event.processed == event.total:
                self.end_progress()

    def publish(self, event: OutputDelta) -> None:
        """Print a piece of output at once."""
        if not self._show_content:
            return
        if event.channel == "content":
            self._reasoning.end()
            self._content.write(event.text)
        elif not self._terminal.quiet:
            self._reasoning.write(event.text)

    def finish(self, tool_calls: Sequence[ToolCall]) -> None:
        """End what was begun: the answer, then one line of JSON per call, and one newline."""
        self._reasoning.end()
        if not self._show_content:
            return
        for call in tool_calls:
            self._content.end()
            line = {"name": call.name, "arguments": call.arguments}
            self._content.write(write_json(line, separators=(", ", ": ")))
        self._content.end(always=True)

    def end_progress(self) -> None:
        """Remove the bar, if there is one, which hides the cursor; needed after an error too."""
        if self._progress is not None:
            self._progress.__exit__(None, None, None)
            self._progress = None


class _Lines:
    """Writes text to a standard stream and holds newlines back until more text follows."""

    def __init__(self, stream: Literal["stdout", "stderr"]) -> None:
        self._stream = stream
        self._newlines = ""
        self._is_open = False

    def write(self, text: str) -> None:
        """Write all of `text` but the newlines at its end."""
        body = text.rstrip("\n")
        if body:
            self._emit(self._newlines + body)
            self._newlines = ""
            self._is_open = True
        self._newlines += text[len(body) :]

    def end(self, *, always: bool = False) -> None:
        """Write one newline if any text stands before it, or `always`."""
        if self._is_open or always:
            self._emit("\n")
        self._newlines = ""
        self._is_open = False

    def _emit(self, text: str) -> None:
        try:
            stream = getattr(sys, self._stream)
            if stream is None:  # closed before the process began
                raise BrokenPipeError
            stream.write(text)
            stream.flush()
        except OSError:
            # Thoughts that nobody can read must not cost the answer.
            if self._stream == "stdout":
                raise
