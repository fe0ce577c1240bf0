"""Where a command prints: the product on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TextIO

import click
from rich.console import Console

from ninfer_format.commandline.printable import printable
from ninfer_format.commandline.streams import discard
from ninfer_format.errors import NInferError

ColorChoice = Literal["auto", "always", "never"]
ProgressChoice = Literal["auto", "rich", "plain", "off"]


class _Console(Console):
    """A console that leaves it to the command what a reader that has gone means."""

    def on_broken_pipe(self) -> None:
        """Pass the error on; rich itself would end the process."""
        raise BrokenPipeError


def _console(stream: TextIO, color: ColorChoice) -> Console:
    forced = {"auto": None, "always": True, "never": False}[color]
    return _Console(
        file=stream,
        force_terminal=forced,
        no_color=True if color == "never" else None,
        highlight=False,
        emoji=False,
        soft_wrap=True,
    )


@dataclass
class Terminal:
    """The two streams of a running command and what the user asked of them.

    Attributes:
        schema: Name and version of the command's JSON document, for example ``ninfer/1``.
        json: Print one JSON document on stdout and nothing else there.
        progress: How progress is shown on stderr.
        verbose: How often ``-v`` was given.
        quiet: Print nothing on stderr but errors.
        debug: Show tracebacks.
    """

    schema: str
    json: bool = False
    color: ColorChoice = "auto"
    progress: ProgressChoice = "auto"
    verbose: int = 0
    quiet: bool = False
    debug: bool = False
    out: Console = field(init=False)
    err: Console = field(init=False)

    def __post_init__(self) -> None:
        """Open a console on each stream as it is now, so that tests may replace them."""
        self.out = _console(sys.stdout, self.color)
        self.err = _console(sys.stderr, self.color)

    def note(self, message: str) -> None:
        """Print one line for a person on stderr, unless ``--quiet`` was given.

        A stderr that cannot be written, because its reader has gone or its disk is full, costs
        the line and nothing else.
        """
        if self.quiet:
            return
        try:
            self.err.print(message, markup=False)
        except OSError:
            discard(sys.stderr)

    def detail(self, message: str) -> None:
        """Print one line on stderr if ``-v`` was given."""
        if self.verbose:
            self.note(message)

    def warn(self, message: str) -> None:
        """Print one line that starts with ``warning:`` on stderr."""
        self.note(printable(f"warning: {message}"))

    def print_json(self, document: dict[str, Any], *, failure: NInferError | None = None) -> None:
        """Print the command's one JSON document; ``schema`` and ``ok`` are put in front.

        Args:
            document: The other members.
            failure: What went wrong, if the document describes a failure. It is in the document
                as ``error``, and on stderr.
        """
        outcome: dict[str, Any] = {"schema": self.schema, "ok": failure is None}
        if failure is not None:
            self._print_error(failure)
            outcome["error"] = _details(failure)
        text = json.dumps(outcome | document, ensure_ascii=False, indent=2, allow_nan=False)
        click.echo(text)

    def fail(self, error: NInferError) -> None:
        """Report `error`: one line (and a hint) on stderr, with ``--json`` a document as well."""
        self._print_error(error)
        if self.json:
            document = {"schema": self.schema, "ok": False, "error": _details(error)}
            # A full disk or a closed pipe can take no document; stderr has said what happened.
            with suppress(OSError):
                click.echo(json.dumps(document, ensure_ascii=False, indent=2))

    def _print_error(self, error: NInferError) -> None:
        hint = f" (hint: {error.hint})" if error.hint else ""
        # Names out of files stand in messages, and must not forge lines or drive the terminal.
        try:
            click.echo(printable(f"error: {error}{hint}"), err=True)
        except OSError:
            discard(sys.stderr)


def _details(error: NInferError) -> dict[str, str]:
    details = {"code": error.code, "message": str(error)}
    if error.path is not None:
        details["path"] = error.path
    if error.hint is not None:
        details["hint"] = error.hint
    return details
