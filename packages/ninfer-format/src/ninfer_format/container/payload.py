"""The logical payload: one run of bytes that lies in one or more files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer_format.container.framing import FILE_ALIGNMENT, HEADER_BYTES, check_part_header
from ninfer_format.container.location import located
from ninfer_format.container.regular_file import open_regular_file
from ninfer_format.container.schema import FileSegment
from ninfer_format.container.segment_file import SegmentFile
from ninfer_format.errors import ArtifactError

Buffer = bytearray | memoryview | NDArray[Any]
"""Contiguous memory that can be written to."""

_Piece = tuple[SegmentFile, int, int]
"""Bytes [begin, end) of a file."""


class Payload:
    """Bytes of all segments under one range of offsets; safe to read from several threads.

    Continuation files are opened and checked when a read first needs them, so that a partial set
    serves what it has. A read opens every file that it needs before it allocates anything: until
    then a length is only a number that somebody wrote into the directory.

    Args:
        entry: The entry file.
        payload_start: Where the first segment begins in the entry.
        segments: All segments, the entry's first.
        artifact_id: The 16 bytes that all files of the set carry.
    """

    def __init__(
        self,
        entry: SegmentFile,
        payload_start: int,
        segments: Sequence[FileSegment],
        artifact_id: bytes,
    ) -> None:
        self._entry_path = entry.path
        self._segments = segments
        self._artifact_id = artifact_id
        self._begins = [0, *accumulate(segment.payload_bytes for segment in segments)]
        self._starts = [payload_start, *[FILE_ALIGNMENT] * (len(segments) - 1)]
        self._files: list[SegmentFile | None] = [entry, *[None] * (len(segments) - 1)]
        self._lock = Lock()
        self._closed = False

    @property
    def num_bytes(self) -> int:
        """Length of the logical payload."""
        return self._begins[-1]

    def close(self) -> None:
        """Release the files. Arrays that were taken from the payload stay valid."""
        with self._lock:
            self._closed = True
            self._files = [None] * len(self._files)

    def in_one_file(self, offset: int, length: int) -> bool:
        """Whether logical bytes [offset, offset + length) can be viewed without being copied."""
        return offset + length <= self._begins[bisect_right(self._begins, offset)]

    def require(self, offset: int, length: int) -> None:
        """Open and check every file that logical bytes [offset, offset + length) lie in.

        Raises:
            ArtifactError: `range`: outside the payload; `part`: a continuation file is not the
                right one.
            OSError: A continuation file cannot be read.
        """
        self._pieces(offset, length)

    def read(self, offset: int, length: int) -> bytes:
        """Copy logical bytes [offset, offset + length).

        Raises:
            ArtifactError: `range`: outside the payload; `part`: a continuation file is not the
                right one; `part` or `framing`: a file was cut short since it was opened.
            OSError: A file cannot be read.
        """
        pieces = self._pieces(offset, length)
        return b"".join([file.read(begin, end - begin) for file, begin, end in pieces])

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fill a buffer with the logical bytes from `offset` on; raises the same errors as `read`.

        Nothing is mapped: the memory of the process does not grow with what has been read.
        """
        view = buffer.data if isinstance(buffer, np.ndarray) else memoryview(buffer)
        # An array with an axis of length 0 cannot be cast.
        view = view.cast("B") if view.nbytes else memoryview(b"")
        for file, begin, end in self._pieces(offset, view.nbytes):
            file.read_into(begin, view[: end - begin])
            view = view[end - begin :]

    def view(self, offset: int, length: int) -> NDArray[np.uint8]:
        """Look at logical bytes [offset, offset + length): uint8 [length], read-only.

        A range inside one file is mapped, not copied. Raises the same errors as `read`.
        """
        pieces = self._pieces(offset, length)
        if len(pieces) == 1:
            file, begin, end = pieces[0]
            return np.frombuffer(file.mapping(), np.uint8, count=end - begin, offset=begin)
        joined = np.empty(length, np.uint8)
        self.read_into(offset, joined)
        joined.flags.writeable = False
        return joined

    def _pieces(self, offset: int, length: int) -> list[_Piece]:
        """The file and the byte range in it of each segment that the range touches."""
        end = offset + length
        if offset < 0 or length < 0 or end > self.num_bytes:
            raise ArtifactError(
                "range",
                "range is outside the payload",
                expected=f"within [0, {self.num_bytes})",
                found=f"[{offset}, {end})",
            )
        pieces: list[_Piece] = []
        index = bisect_right(self._begins, offset) - 1
        while offset < end:
            stop = min(end, self._begins[index + 1])
            shift = self._starts[index] - self._begins[index]
            pieces.append((self._file(index), offset + shift, stop + shift))
            offset = stop
            index += 1
        return pieces

    def _file(self, index: int) -> SegmentFile:
        with self._lock:
            if self._closed:
                raise ValueError(f"{self._entry_path}: artifact is closed")
            file = self._files[index]
            if file is None:
                file = self._files[index] = self._open_part(index)
            return file

    def _open_part(self, index: int) -> SegmentFile:
        segment = self._segments[index]
        path = self._entry_path.parent / str(segment.path)
        with open_regular_file(path, "part") as file, located(path):
            check_part_header(file.read(HEADER_BYTES), index, self._artifact_id)
            expected = FILE_ALIGNMENT + segment.payload_bytes
            found = file.seek(0, 2)
            if found != expected:
                raise ArtifactError(
                    "part",
                    "wrong length",
                    expected=f"{expected} bytes",
                    found=found,
                    hint="the file is incomplete; copy it again",
                )
            return SegmentFile(path, file, expected, "part")
