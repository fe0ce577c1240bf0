"""Progress of long work on stderr: a bar on a terminal, sparse plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Literal, Protocol, Self

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress

from ninfer_format.commandline.sizes import format_bytes
from ninfer_format.commandline.terminal import Terminal

Unit = Literal["bytes", "steps"]

_PLAIN_INTERVAL_S = 10.0
_PLAIN_INTERVAL_FRACTION = 0.1


class _Display(Protocol):
    def start(self) -> None: ...
    def show(self, done: int, item: str) -> None: ...
    def stop(self, done: int) -> None: ...


class Progress:
    """One bar over one piece of work of known size; a context manager.

    Args:
        terminal: Where and how to show it.
        description: What is being done, for example ``converting``.
        total: Size of the whole work, in `unit`.
        unit: ``bytes`` or ``steps``.
    """

    def __init__(
        self, terminal: Terminal, description: str, *, total: int, unit: Unit = "steps"
    ) -> None:
        self.total = total
        self.done = 0
        self._display = _choose_display(terminal, description, total, unit)

    def __enter__(self) -> Self:
        """Show the empty bar."""
        self._display.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove the bar; after an exception too."""
        self._display.stop(self.done)

    def advance(self, amount: int, item: str = "") -> None:
        """Count `amount` more units as done; `item` names what is being worked on now."""
        self.done += amount
        self._display.show(self.done, item)


def _choose_display(terminal: Terminal, description: str, total: int, unit: Unit) -> _Display:
    choice = terminal.progress
    if choice == "auto":
        # Not what rich says of the stream: forced colours do not make a pipe a terminal.
        choice = "rich" if terminal.err.file.isatty() else "plain"
    if choice == "off" or terminal.quiet:
        return _Silent()
    if choice == "rich":
        return _Bar(terminal, description, total, unit)
    return _PlainLines(terminal, description, total, unit)


class _Silent:
    def start(self) -> None:
        pass

    def show(self, done: int, item: str) -> None:
        pass

    def stop(self, done: int) -> None:
        pass


class _Bar:
    def __init__(self, terminal: Terminal, description: str, total: int, unit: Unit) -> None:
        measures: list[ProgressColumn] = (
            [DownloadColumn(binary_units=True), TransferSpeedColumn()]
            if unit == "bytes"
            else [MofNCompleteColumn()]
        )
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            *measures,
            TimeRemainingColumn(),
            TextColumn("{task.fields[item]}", style="dim"),
            console=terminal.err,
            transient=True,
        )
        self._task = self._bar.add_task(description, total=total, item="")

    def start(self) -> None:
        self._bar.start()

    def show(self, done: int, item: str) -> None:
        self._bar.update(self._task, completed=done, item=item)

    def stop(self, done: int) -> None:
        self._bar.stop()


class _PlainLines:
    """A line at most every 10 seconds or 10 %, whichever is rarer; the first and last always."""

    def __init__(self, terminal: Terminal, description: str, total: int, unit: Unit) -> None:
        self._terminal = terminal
        self._description = description
        self._total = total
        self._unit = unit
        self._shown_at = 0.0
        self._shown_done = 0

    def start(self) -> None:
        self._print(0)

    def show(self, done: int, item: str) -> None:
        waited = time.monotonic() - self._shown_at
        gained = done - self._shown_done
        if waited >= _PLAIN_INTERVAL_S and gained >= self._total * _PLAIN_INTERVAL_FRACTION:
            self._print(done)

    def stop(self, done: int) -> None:
        self._print(done)

    def _print(self, done: int) -> None:
        self._shown_at = time.monotonic()
        self._shown_done = done
        percentage = 100 * done // self._total if self._total else 100
        amounts = (
            f"{format_bytes(done)} of {format_bytes(self._total)}"
            if self._unit == "bytes"
            else f"{done} of {self._total}"
        )
        self._terminal.note(f"{self._description}: {percentage} % ({amounts})")
