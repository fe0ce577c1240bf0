"""Lines to a stream that may stop taking them: a pipe that nobody reads, a disk that is full."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Full, Queue
from types import TracebackType
from typing import Self

MAX_WAITING_LINES = 1000
"""Lines that may wait for the stream; further ones are dropped and counted."""

_LAST_LINES_S = 1.0
"""How long the stream may take for what waits when the writer is closed, in seconds."""


class LineWriter:
    """Writes lines on a thread of its own, so that nobody else waits for the stream.

    A line that the stream refuses is lost: there is no place left to say so. Lines that were
    dropped because too many waited are counted in a line that follows them.

    Args:
        write_bytes: Gives bytes to the stream. It must have no buffer of its own, which the
            interpreter would try to write once more at exit.
    """

    def __init__(self, write_bytes: Callable[[bytes], object]) -> None:
        self._write_bytes = write_bytes
        self._lines: Queue[str | None] = Queue(MAX_WAITING_LINES)
        self._dropped = 0
        self._lock = threading.Lock()
        # A daemon: a stream that never takes the last line must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="ninfer-log", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def write(self, line: str) -> None:
        """Write a line, which has no end of its own, at some time from now on."""
        with self._lock:
            try:
                self._lines.put_nowait(line)
            except Full:
                self._dropped += 1

    def close(self) -> None:
        """Wait until everything is written, but not long for a stream that takes nothing."""
        with suppress(Full):
            self._lines.put(None, timeout=_LAST_LINES_S)
            self._thread.join(_LAST_LINES_S)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            self._put(line)
            with self._lock:
                dropped, self._dropped = self._dropped, 0
            if dropped:
                self._put(f"{dropped} log lines were dropped: they came faster than they were read")

    def _put(self, line: str) -> None:
        with suppress(OSError):
            self._write_bytes(f"{line}\n".encode(errors="backslashreplace"))
