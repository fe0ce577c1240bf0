"""The standard streams of a process: UTF-8, present, and harmless when they cannot be written."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO


def prepare_streams() -> None:
    """Make stdout and stderr what commands expect, whatever the process was started with.

    Both speak UTF-8 in any locale and replace what cannot be encoded. A closed stdout becomes a
    broken pipe, so that a product that nobody can read is a failure; a closed stderr is ignored.
    """
    if sys.stdout is None:
        read_end, write_end = os.pipe()
        os.close(read_end)
        sys.stdout = os.fdopen(write_end, "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")


def discard(stream: TextIO) -> None:
    """Point a stream at nothing, since the interpreter flushes it once more at exit."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, stream.fileno())
    os.close(descriptor)
