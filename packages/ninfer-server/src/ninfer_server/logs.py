"""Operational logs on stderr: one line an event, never a prompt, an output, a body or a key."""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from collections.abc import Mapping, MutableMapping
from datetime import datetime
from typing import Any, Literal, TextIO, get_args

import structlog

LogLevel = Literal["trace", "debug", "info", "warning", "error", "critical", "off"]
LOG_LEVELS: tuple[str, ...] = get_args(LogLevel)

_SEVERITIES = {
    # structlog knows no level below debug; nothing is logged there yet.
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}

_PLAIN_VALUE = re.compile(r"[\w./:%+-]+", re.ASCII)


def get_logger() -> structlog.typing.FilteringBoundLogger:
    """Return the server's logger: ``logger.info("message", key=value)``."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger


def configure_logging(level: LogLevel, stream: TextIO | None = None) -> None:
    """Decide what is logged, for the whole process.

    Args:
        level: Least severe level that is shown.
        stream: Where lines go; stderr when absent.
    """
    stream = sys.stderr if stream is None else stream
    structlog.configure(
        processors=[_drop if level == "off" else _render],
        wrapper_class=structlog.make_filtering_bound_logger(
            _SEVERITIES.get(level, logging.CRITICAL)
        ),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    _configure_libraries(level, stream)


def describe_fault(error: BaseException) -> dict[str, str]:
    """Say what kind of exception was raised where, as values of a log line.

    Its text is left out: it may hold parts of a prompt or of an output.
    """
    cause = error.__cause__ or error
    frames = traceback.extract_tb(cause.__traceback__)
    where = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
    return {"exception": type(cause).__name__, "where": where}


def _configure_libraries(level: LogLevel, stream: TextIO) -> None:
    """Show the warnings of the engine and of the libraries in the same form.

    Never less severe ones: the event stream library writes whole outputs at the debug level.
    """
    handler: logging.Handler = logging.StreamHandler(stream)
    handler.setFormatter(_LibraryFormatter())
    if level == "off":
        handler = logging.NullHandler()
    severity = max(_SEVERITIES.get(level, logging.CRITICAL), logging.WARNING)
    for name in ("ninfer_runtime", "uvicorn", "sse_starlette", "asyncio", "concurrent.futures"):
        library = logging.getLogger(name)
        library.handlers = [handler]
        library.propagate = False
        library.setLevel(severity)


class _LibraryFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        fault = {} if error is None else describe_fault(error)
        return _line(record.levelname, record.getMessage(), fault)


def _render(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    message = str(event.pop("event"))
    return _line(method, message, event)


def _drop(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    raise structlog.DropEvent


def _line(level: str, message: str, values: Mapping[str, Any]) -> str:
    now = datetime.now().astimezone()
    stamp = f"{now:%Y-%m-%d %H:%M:%S}.{now.microsecond // 1000:03d}"
    shown = [message.replace("\n", " "), *(f"{key}={_quote(values[key])}" for key in values)]
    return f"{stamp}  {level.upper()}  {' '.join(shown)}"


def _quote(value: object) -> str:
    """Return a value that cannot break its line: quoted unless it is a plain word."""
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if _PLAIN_VALUE.fullmatch(text) else json.dumps(text)
