"""The logical payload: one run of bytes that lies in one or more memory-mapped files."""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ninfer_format.container.framing import FILE_ALIGNMENT, HEADER_BYTES, check_part_header
from ninfer_format.container.location import located
from ninfer_format.container.regular_file import open_regular_file
from ninfer_format.container.schema import FileSegment
from ninfer_format.errors import ArtifactError


class Payload:
    """Bytes of all segments under one range of offsets; safe to read from several threads.

    Continuation files are opened and checked when a read first needs them, so that a partial set
    serves what it has. Files must not be cut short while they are mapped: the operating system
    answers a read of the missing bytes with a bus error. Artifacts are therefore never changed in
    place.

    Args:
        entry: The entry file.
        mapping: The entry file, mapped.
        payload_start: Where the first segment begins in the entry.
        segments: All segments, the entry's first.
        artifact_id: The 16 bytes that all files of the set carry.
    """

    def __init__(
        self,
        entry: Path,
        mapping: mmap.mmap,
        payload_start: int,
        segments: Sequence[FileSegment],
        artifact_id: bytes,
    ) -> None:
        self._entry = entry
        self._segments = segments
        self._artifact_id = artifact_id
        self._begins = [0, *accumulate(segment.payload_bytes for segment in segments)]
        self._starts = [payload_start, *[FILE_ALIGNMENT] * (len(segments) - 1)]
        self._mappings: list[mmap.mmap | None] = [mapping, *[None] * (len(segments) - 1)]
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
            # An explicit close would fail while arrays look at the mapping; the last one frees it.
            self._mappings = [None] * len(self._mappings)

    def read(self, offset: int, length: int) -> bytes:
        """Copy logical bytes [offset, offset + length).

        Raises:
            ArtifactError: `range`: outside the payload; `part`: a continuation file is not the
                right one.
            OSError: A continuation file cannot be read.
        """
        self._check_range(offset, length)
        return b"".join(mapping[begin:end] for mapping, begin, end in self._pieces(offset, length))

    def view(self, offset: int, length: int) -> NDArray[np.uint8]:
        """Look at logical bytes [offset, offset + length): uint8 [length], read-only.

        A range inside one file is not copied. Raises the same errors as `read`.
        """
        self._check_range(offset, length)
        arrays = [
            np.frombuffer(mapping, np.uint8, count=end - begin, offset=begin)
            for mapping, begin, end in self._pieces(offset, length)
        ]
        if len(arrays) == 1:
            return arrays[0]
        joined = np.concatenate(arrays) if arrays else np.empty(0, np.uint8)
        joined.flags.writeable = False
        return joined

    def _check_range(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self.num_bytes:
            raise ArtifactError(
                "range",
                "range is outside the payload",
                expected=f"within [0, {self.num_bytes})",
                found=f"[{offset}, {offset + length})",
            )

    def _pieces(self, offset: int, length: int) -> Iterator[tuple[mmap.mmap, int, int]]:
        """Yield the file and the byte range in it for each segment that the range touches."""
        end = offset + length
        index = bisect_right(self._begins, offset) - 1
        while offset < end:
            stop = min(end, self._begins[index + 1])
            shift = self._starts[index] - self._begins[index]
            yield self._mapping(index), offset + shift, stop + shift
            offset = stop
            index += 1

    def _mapping(self, index: int) -> mmap.mmap:
        with self._lock:
            if self._closed:
                raise ValueError(f"{self._entry}: artifact is closed")
            mapping = self._mappings[index]
            if mapping is None:
                mapping = self._open_part(index)
                self._mappings[index] = mapping
            return mapping

    def _open_part(self, index: int) -> mmap.mmap:
        segment = self._segments[index]
        path = self._entry.parent / str(segment.path)
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
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
