"""Writing the files of a planned artifact: headers, directory, and any bytes of the payload."""

from __future__ import annotations

import errno
import os
import uuid
from bisect import bisect_right
from itertools import accumulate
from os import PathLike
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

from ninfer_format.container.framing import ENTRY_MAGIC, FILE_ALIGNMENT, PART_MAGIC, pack_header
from ninfer_format.container.segments import FileSetPlan
from ninfer_format.errors import ArtifactError
from ninfer_format.publish import StagedFiles

CHUNK_BYTES = 8 * 2**20
"""Payload is copied and written in pieces of this size."""
SYNC_BYTES = 64 * 2**20
"""So much of a file may wait in memory for the disk while it is written."""


class FileSetWriter:
    """Temporary files of one artifact, published together; a context manager.

    Entering creates the files beside their targets, as long as they will be and with headers and
    directory in them; payload that is never written is zero. Leaving removes whatever `publish`
    did not give its name. Payload may be written in any order and from several threads. That each
    byte is written once is the business of `ArtifactWriter`.

    Args:
        path: The entry file to be; its name is the one of the plan.
        plan: The files.
        artifact_id: 16 bytes that identify the set; random when absent.

    Raises:
        FileExistsError: The entry or a part exists.
        ArtifactError: `writer`: the id has another length.
    """

    def __init__(
        self, path: str | PathLike[str], plan: FileSetPlan, artifact_id: bytes | None = None
    ) -> None:
        self.path = Path(path)
        self.plan = plan
        self.artifact_id = uuid.uuid4().bytes if artifact_id is None else artifact_id
        if len(self.artifact_id) != 16:
            raise ArtifactError(
                "writer",
                "artifact id has the wrong length",
                expected="16 bytes",
                found=len(self.artifact_id),
            )
        for target in self.file_paths:
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, "output exists already", str(target))
        self._begins = [0, *accumulate(plan.segments)]
        self._staged = StagedFiles()
        self._descriptors: dict[int, int] = {}
        self._waiting = [0] * len(plan.segments)
        self._lock = Lock()

    @property
    def file_paths(self) -> tuple[Path, ...]:
        """All files of the set, the entry first."""
        names = (file.path for file in self.plan.directory.files)
        return tuple(self.path if name is None else self.path.with_name(name) for name in names)

    def __enter__(self) -> Self:
        """Create the temporary files."""
        self.create()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove what was not published."""
        self.discard()

    def create(self) -> None:
        """Create the temporary files, and the folder if it is missing."""
        try:
            self._staged.make_folder(self.path.parent)
            # Published in this order: an entry that can be seen has all its parts.
            for index in (*range(1, len(self.plan.segments)), 0):
                self._create(index)
        except BaseException:
            self.discard()
            raise

    def write(self, offset: int, view: memoryview) -> None:
        """Write bytes of the payload.

        Args:
            offset: First byte in the logical payload.
            view: The bytes, one item each; all inside the payload.

        Raises:
            OSError: The disk is full or fails.
        """
        index = bisect_right(self._begins, offset) - 1
        while view.nbytes:
            count = min(view.nbytes, CHUNK_BYTES, self._begins[index + 1] - offset)
            position = self._payload_start(index) + offset - self._begins[index]
            _write_all(self._descriptors[index], view[:count], position)
            self._bound_waiting(index, count)
            view = view[count:]
            offset += count
            if offset == self._begins[index + 1]:
                index += 1

    def publish(self) -> None:
        """Flush all files to disk and give them their names, the entry last.

        Raises:
            FileExistsError: A target appeared meanwhile; it is left as it is.
            OSError: The disk fails.
        """
        self._staged.publish_new()

    def discard(self) -> None:
        """Remove what was not published."""
        self._staged.discard()

    def _create(self, index: int) -> None:
        size = self._payload_start(index) + self.plan.segments[index]
        descriptor = self._staged.create(self.file_paths[index], size)
        self._descriptors[index] = descriptor
        if index:
            data = pack_header(PART_MAGIC, index, self.artifact_id)
        else:
            json_bytes = self.plan.json_bytes
            data = pack_header(ENTRY_MAGIC, len(json_bytes), self.artifact_id) + json_bytes
        _write_all(descriptor, memoryview(data), 0)

    def _payload_start(self, index: int) -> int:
        return FILE_ALIGNMENT if index else self.plan.entry_payload_start

    def _bound_waiting(self, index: int, count: int) -> None:
        """Wait for the disk now and then, not for everything at the end."""
        with self._lock:
            self._waiting[index] += count
            if self._waiting[index] < SYNC_BYTES:
                return
            self._waiting[index] = 0
        os.fdatasync(self._descriptors[index])


def _write_all(descriptor: int, view: memoryview, position: int) -> None:
    while view.nbytes:
        written = os.pwrite(descriptor, view, position)
        view = view[written:]
        position += written
