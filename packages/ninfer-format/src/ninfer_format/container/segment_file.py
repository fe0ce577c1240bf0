"""One open file of an artifact."""

from __future__ import annotations

import mmap
import os
import weakref
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Literal

from ninfer_format.errors import ArtifactError


class SegmentFile:
    """A file that is read by position, from any thread, and mapped when somebody wants a view.

    It stays the file that was opened whatever happens to its name. A file that was cut short
    since is an error of every read; only a view that was handed out before cannot know, and the
    operating system answers it with a bus error.

    The descriptor is closed with the last reference, not by a call: closing it under a thread that
    reads would let that thread read from whatever file gets the number next.

    Args:
        path: Its name, for messages.
        file: The file, open; it may be closed afterwards.
        num_bytes: Its length, which was checked.
        category: What a shorter file breaks.
    """

    def __init__(
        self, path: Path, file: BinaryIO, num_bytes: int, category: Literal["framing", "part"]
    ) -> None:
        self.path = path
        self.num_bytes = num_bytes
        self._category: Literal["framing", "part"] = category
        self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)
        self._mapping: mmap.mmap | None = None
        self._lock = Lock()

    def read(self, position: int, length: int) -> bytes:
        """Copy bytes [position, position + length) of the file.

        Raises:
            ArtifactError: The file is shorter than it was.
            OSError: It cannot be read.
        """
        data = os.pread(self._descriptor, length, position)
        if len(data) == length:
            return data
        # Few systems read more than 2 GiB at once.
        whole = bytearray(length)
        whole[: len(data)] = data
        self.read_into(position + len(data), memoryview(whole)[len(data) :])
        return bytes(whole)

    def read_into(self, position: int, view: memoryview) -> None:
        """Fill `view` with the bytes from `position` on; raises the same errors as `read`."""
        while view.nbytes:
            count = os.preadv(self._descriptor, [view], position)
            if count == 0:
                raise self._cut_short()
            view = view[count:]
            position += count

    def mapping(self) -> mmap.mmap:
        """The whole file as memory; raises the same errors as `read`."""
        if os.fstat(self._descriptor).st_size < self.num_bytes:
            raise self._cut_short()
        with self._lock:
            if self._mapping is None:
                try:
                    self._mapping = mmap.mmap(
                        self._descriptor, self.num_bytes, access=mmap.ACCESS_READ
                    )
                except ValueError:  # It became shorter just now.
                    raise self._cut_short() from None
            return self._mapping

    def _cut_short(self) -> ArtifactError:
        return ArtifactError(
            self._category,
            "the file was cut short while it was open",
            path=self.path,
            expected=f"{self.num_bytes} bytes",
            found=os.fstat(self._descriptor).st_size,
        )
