"""Operational logs on stderr: one line an event, never a prompt, an output, a body or a key."""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from datetime import datetime
from typing import Any

import structlog

from ninfer_runtime.environment import LogLevel

_SEVERITIES = {
    # structlog knows no level below debug; nothing is logged there yet.
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "off": logging.CRITICAL + 1,
}
_LIBRARIES = ("ninfer_runtime", "uvicorn", "sse_starlette", "asyncio", "concurrent.futures")

_SERVER = "ninfer_server"
_VALUES = "values_of_line"

_PLAIN_VALUE = re.compile(r"[\w./:%+-]+", re.ASCII)


def get_logger() -> structlog.typing.FilteringBoundLogger:
    """Return the server's logger: ``logger.info("message", key=value)``."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger


def configure_logging(level: LogLevel, write: Callable[[str], None]) -> None:
    """Decide what is logged, for the whole process.

    Libraries are shown in the same form, but never less than their warnings: the event stream
    library writes whole outputs at the debug level.

    Args:
        level: Least severe level that is shown.
        write: Takes each line; it is called on any thread, the event loop's too, and must neither
            wait nor raise.
    """
    severity = _SEVERITIES[level]
    structlog.configure(
        processors=[_as_record],
        # It knows the standard levels only; what is beyond them, the logger behind it drops.
        wrapper_class=structlog.make_filtering_bound_logger(min(severity, logging.CRITICAL)),
        logger_factory=lambda *_: logging.getLogger(_SERVER),
        cache_logger_on_first_use=False,
    )
    handler = _LineHandler(write)
    _show(_SERVER, handler, severity)
    for library in _LIBRARIES:
        _show(library, handler, max(severity, logging.WARNING))


def describe_fault(error: BaseException) -> dict[str, str]:
    """Say what kind of exception was raised where, as values of a log line.

    Its text is left out: it may hold parts of a prompt or of an output.
    """
    cause = error.__cause__ or error
    frames = traceback.extract_tb(cause.__traceback__)
    where = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
    return {"exception": type(cause).__name__, "where": where}


def _show(name: str, handler: logging.Handler, severity: int) -> None:
    logger = logging.getLogger(name)
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(severity)


def _as_record(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> tuple[tuple[str], dict[str, Any]]:
    """Return the arguments of the standard library's logger for an event."""
    return (str(event.pop("event")),), {"extra": {_VALUES: event}}


class _LineHandler(logging.Handler):
    """Hands each record on as one line."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        values = dict(getattr(record, _VALUES, {}))
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            values.update(describe_fault(error))
        self._write(_line(record.levelname, record.getMessage(), values))


def _line(level: str, message: str, values: Mapping[str, Any]) -> str:
    now = datetime.now().astimezone()
    stamp = f"{now:%Y-%m-%d %H:%M:%S}.{now.microsecond // 1000:03d}"
    shown = [message.replace("\n", " "), *(f"{key}={_quote(values[key])}" for key in values)]
    return f"{stamp}  {level}  {' '.join(shown)}"


def _quote(value: object) -> str:
    """Return a value that cannot break its line: quoted unless it is a plain word."""
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if _PLAIN_VALUE.fullmatch(text) else json.dumps(text)
