"""How a command ends: exit codes and error lines."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import click

from ninfer_format.commandline.streams import discard, prepare_streams
from ninfer_format.commandline.terminal import Terminal
from ninfer_format.errors import ExitCode, NInferError, UsageError

_SIGNAL_EXIT_BASE = 128
"""A process that a signal ended reports 128 and the signal's number: 130 for SIGINT."""


class InternalError(NInferError):
    """Something that should not happen: a fault of ours, not of the input."""

    code = "internal"
    exit_code = ExitCode.INTERNAL


class InterruptedCommandError(NInferError):
    """A signal ended the command.

    Args:
        number: The signal.
    """

    code = "interrupted"

    def __init__(self, number: int) -> None:
        super().__init__("interrupted")
        self.exit_status = _SIGNAL_EXIT_BASE + number


class FileSystemError(NInferError):
    """The operating system refused to read or write a file."""

    code = "io"
    exit_code = ExitCode.FAILED


def run(command: click.Command, schema: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `command` and end the process with the right exit code.

    Args:
        command: The click command or group.
        schema: Name and version of its JSON document, used for errors that come before options
            are read.
        arguments: Command line without the program's name; ``sys.argv[1:]`` when absent.
    """
    prepare_streams()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    terminal = Terminal(schema=schema, json="--json" in arguments, debug="--debug" in arguments)
    try:
        with _stop_signals_as_interrupts():
            result = command.main(args=list(arguments), standalone_mode=False)
    except click.exceptions.Exit as exit_request:
        _leave(exit_request.exit_code)
    except (click.Abort, KeyboardInterrupt) as interrupt:
        interrupted = InterruptedCommandError(_signal_of(interrupt))
        terminal.fail(interrupted)
        _leave(interrupted.exit_status)
    except BrokenPipeError:
        _leave_broken_pipe()
    except Exception as error:
        _leave(_report(terminal, error))
    _leave(result if isinstance(result, int) else ExitCode.OK)


class _StopSignal(KeyboardInterrupt):
    """A signal to stop other than that of Ctrl-C; it cleans up in the same way."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def _stop_signals_as_interrupts() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the command, so that nothing half-written remains."""

    def stop(number: int, frame: object) -> NoReturn:
        raise _StopSignal(number)

    # An ignored one stays ignored: that is how nohup works.
    handled = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _signal_of(interrupt: BaseException) -> int:
    """The signal behind an interrupt; click turns a `KeyboardInterrupt` into its own `Abort`."""
    while not isinstance(interrupt, _StopSignal):
        cause = interrupt.__cause__ or interrupt.__context__
        if cause is None:
            return signal.SIGINT
        interrupt = cause
    return interrupt.number


def _report(terminal: Terminal, error: Exception) -> ExitCode:
    if terminal.debug:
        traceback.print_exception(error)
    known = _as_ninfer_error(error)
    terminal.fail(known)
    return known.exit_code


def _as_ninfer_error(error: Exception) -> NInferError:
    if isinstance(error, NInferError):
        return error
    if isinstance(error, click.ClickException):
        message = error.format_message()
        return UsageError(message[:1].lower() + message[1:])
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return FileSystemError(reason.lower(), path=error.filename)
    if isinstance(error, MemoryError):
        known: NInferError = InternalError("out of host memory")
        known.exit_code = ExitCode.CAPACITY
        return known
    return InternalError(
        f"internal error: {type(error).__name__}: {error}", hint="run again with --debug"
    )


def _leave(code: int) -> NoReturn:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _leave_broken_pipe()
    except OSError as error:
        # A full disk shows here when the product was short enough to wait in the buffer.
        click.echo(f"error: {_as_ninfer_error(error)}", err=True)
        discard(sys.stdout)
        code = code or ExitCode.FAILED
    sys.exit(int(code))


def _leave_broken_pipe() -> NoReturn:
    discard(sys.stdout)
    sys.exit(int(ExitCode.FAILED))
