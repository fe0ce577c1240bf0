"""The environment variables of the project: all of them are read here and nowhere else.

A command refuses a variable that it reads if that is set to nothing or to a value that is not
known, because whoever sets one wants it to count. It does not look at those that it has no use for.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, cast, get_args

from ninfer_format.errors import UsageError
from ninfer_runtime.engine.options import Backend

LogLevel = Literal["trace", "debug", "info", "warning", "error", "critical", "off"]


def model() -> Path | None:
    """``NINFER_MODEL``: the artifact that a command uses when none is named.

    Raises:
        UsageError: The variable is empty.
    """
    value = _read("NINFER_MODEL")
    return None if value is None else Path(os.path.expanduser(value))


def backend() -> Backend | None:
    """``NINFER_BACKEND``: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        UsageError: The variable has another value.
    """
    return cast(Backend | None, _choice("NINFER_BACKEND", get_args(Backend)))


def log_level() -> LogLevel | None:
    """``NINFER_LOG_LEVEL``: what is logged, from ``trace`` to ``off``.

    Raises:
        UsageError: The variable has another value.
    """
    return cast(LogLevel | None, _choice("NINFER_LOG_LEVEL", get_args(LogLevel)))


def api_key() -> str | None:
    """``NINFER_API_KEY``: the key that clients of the server must send.

    Raises:
        UsageError: The variable is empty.
    """
    return _read("NINFER_API_KEY")


def kernel_cache_dir() -> Path:
    """``NINFER_CACHE_DIR``: where compiled kernels are kept, in a folder of their own.

    By default ``ninfer`` in the user's cache directory (``XDG_CACHE_HOME``, else ``~/.cache``).

    Raises:
        UsageError: The variable is empty.
    """
    value = _read("NINFER_CACHE_DIR")
    if value is not None:
        return Path(os.path.expanduser(value)) / "kernels"
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "ninfer" / "kernels"


def _read(name: str) -> str | None:
    value = os.environ.get(name)
    if value is not None and not value.strip():
        raise UsageError(f"environment variable {name} is empty", hint="set a value or unset it")
    return value


def _choice(name: str, allowed: tuple[str, ...]) -> str | None:
    value = _read(name)
    if value is not None and value not in allowed:
        raise UsageError(
            f"environment variable {name} is {value!r}, expected one of {', '.join(allowed)}"
        )
    return value
