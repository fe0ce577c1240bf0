"""Writing artifacts: every byte of every object exactly once, and all files or none."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ninfer_format.container.coverage import Coverage
from ninfer_format.container.file_set import FileSetWriter
from ninfer_format.container.plan import ArtifactPlan
from ninfer_format.container.schema import ObjectRecord
from ninfer_format.errors import ArtifactError

Data = bytes | bytearray | memoryview | NDArray[np.uint8]


class ArtifactWriter:
    """Writes one planned artifact; a context manager.

    Entering creates temporary files beside the target and writes headers, directory and resources.
    Leaving normally checks that nothing is missing, flushes to disk and publishes the parts and
    then the entry, without replacing anything. Leaving with an exception removes every trace.
    Regions may be written in any order and from several threads.

    Args:
        path: The entry file to be.
        plan: What to write; its part names follow from `path`.
        artifact_id: 16 bytes that identify the set; random when absent.

    Attributes:
        path: The entry file.
        plan: The plan, cut for the name of `path`.

    Raises:
        FileExistsError: The entry or a part exists.
        ArtifactError: `writer`.
    """

    def __init__(
        self, path: str | PathLike[str], plan: ArtifactPlan, artifact_id: bytes | None = None
    ) -> None:
        self.path = Path(path)
        self.plan = plan.for_entry(self.path.name)
        self._files = FileSetWriter(self.path, self.plan, artifact_id)
        self._records = {record.id: record for record in self.plan.directory.objects}
        self._coverage = {record_id: Coverage() for record_id in self._records}
        self._lock = Lock()
        self._state = "not open"

    @property
    def artifact_id(self) -> bytes:
        """16 bytes that identify the set of files."""
        return self._files.artifact_id

    @property
    def file_paths(self) -> tuple[Path, ...]:
        """All files of the set, the entry first."""
        return self._files.file_paths

    def record(self, object_id: str) -> ObjectRecord:
        """The record of an object that is to be written.

        Raises:
            ArtifactError: `writer`: it is not in the plan.
        """
        record = self._records.get(object_id)
        if record is None:
            raise ArtifactError("writer", "is not in the plan", object_id=object_id)
        return record

    def __enter__(self) -> Self:
        """Create the temporary files and write all that the plan knows."""
        self._files.create()
        try:
            self._state = "open"
            for object_id, data in self.plan.resources.items():
                self.write(object_id, 0, data)
        except BaseException:
            self._state = "closed"
            self._files.discard()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Publish, or remove everything after an exception."""
        try:
            if error is None:
                self._finish()
        finally:
            self._state = "closed"
            self._files.discard()

    def write(self, object_id: str, offset: int, data: Data) -> None:
        """Write bytes of one object.

        Args:
            object_id: The object.
            offset: First byte, counted from the object's start.
            data: The bytes; an empty piece does nothing.

        Raises:
            ArtifactError: `writer`: unknown object, bytes outside it, or bytes written before.
                After that the writer refuses everything.
            TypeError: `data` is not contiguous bytes.
        """
        view = data.data if isinstance(data, np.ndarray) else memoryview(data)
        if view.itemsize != 1 or not view.c_contiguous:
            raise TypeError(
                f"data of object {object_id!r} must be contiguous bytes, "
                f"found items of {view.itemsize} bytes"
            )
        # An array with an axis of length 0 cannot be cast.
        view = view.cast("B") if view.nbytes else memoryview(b"")
        with self._lock:
            begin = self._claim(object_id, offset, view.nbytes)
        try:
            self._files.write(begin, view)
        except BaseException:
            self._state = "failed"
            raise

    def _claim(self, object_id: str, offset: int, length: int) -> int:
        """Note that bytes are about to be written; returns their offset in the payload."""
        if self._state != "open":
            raise ArtifactError("writer", f"writer is {self._state}", object_id=object_id)
        record = self._records.get(object_id)
        if record is None:
            raise self._failure(object_id, "is not in the plan")
        if offset < 0 or offset + length > record.num_bytes:
            raise self._failure(
                object_id, f"[{offset}, {offset + length}) is outside its {record.num_bytes} bytes"
            )
        if length and not self._coverage[object_id].add(offset, offset + length):
            raise self._failure(
                object_id, f"a byte of [{offset}, {offset + length}) was written before"
            )
        return record.offset + offset

    def _failure(self, object_id: str, message: str) -> ArtifactError:
        self._state = "failed"
        return ArtifactError("writer", message, object_id=object_id)

    def _finish(self) -> None:
        if self._state != "open":
            raise ArtifactError("writer", f"writer is {self._state}", path=self.path)
        for object_id, record in self._records.items():
            hole = self._coverage[object_id].first_hole(record.num_bytes)
            if hole is not None:
                raise ArtifactError(
                    "writer",
                    f"bytes [{hole[0]}, {hole[1]}) were never written",
                    path=self.path,
                    object_id=object_id,
                )
        self._files.publish()
