"""Reading files of container versions 1 and 2."""

from __future__ import annotations

import struct
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ninfer_format.container.framing import (
    CONTAINER_VERSION,
    ENTRY_MAGIC,
    FILE_ALIGNMENT,
    MAX_JSON_BYTES,
    SPARE_BYTES,
)
from ninfer_format.container.json_text import parse_json
from ninfer_format.container.location import located
from ninfer_format.container.payload import Payload
from ninfer_format.container.regular_file import open_regular_file
from ninfer_format.container.schema import FileSegment, ObjectRecord
from ninfer_format.container.segment_file import SegmentFile
from ninfer_format.errors import ArtifactError
from ninfer_format.layouts import align_up
from ninfer_format.legacy.directory import LegacyDirectory, parse_legacy_directory
from ninfer_format.legacy.names import LegacyVersion

_PREFIX = struct.Struct("<8sQ")
_MAGICS: dict[bytes, LegacyVersion] = {ENTRY_MAGIC[:7] + b"\x01": 1, ENTRY_MAGIC[:7] + b"\x02": 2}


def open_legacy(path: str | PathLike[str]) -> LegacyArtifact:
    """Open a file of container version 1 or 2.

    Everything is checked at once except the contents of the objects.

    Raises:
        ArtifactError: `framing`: not such a file; `json`, `schema`, `objects` or `encoding`: its
            directory breaks a rule.
        OSError: The file cannot be read.
    """
    path = Path(path)
    with open_regular_file(path, "framing") as file, located(path):
        file_bytes = file.seek(0, 2)
        file.seek(0)
        version, json_bytes = _unpack_prefix(file.read(_PREFIX.size), file_bytes)
        start = _payload_start(json_bytes, file_bytes)
        payload_bytes = file_bytes - start
        root = parse_json(file.read(json_bytes), max_bytes=file_bytes + SPARE_BYTES)
        directory = parse_legacy_directory(root, version, payload_bytes)
        segment_file = SegmentFile(path, file, file_bytes, "framing")
    payload = Payload(segment_file, start, [FileSegment(None, payload_bytes)], artifact_id=b"")
    return LegacyArtifact(path, directory, payload)


class LegacyArtifact:
    """An open file of container version 1 or 2; a context manager. Made by `open_legacy`.

    Reading is possible from several threads.

    Attributes:
        path: The file.
        directory: Everything the JSON says.
        payload: All that lies behind the directory, bytes that belong to no object included.
    """

    def __init__(self, path: Path, directory: LegacyDirectory, payload: Payload) -> None:
        self.path = path
        self.directory = directory
        self.payload = payload
        self._records = {record.id: record for record in directory.objects}

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Release the file; later reads fail."""
        self.payload.close()

    def record(self, name: str) -> ObjectRecord:
        """The record of an object.

        Raises:
            ArtifactError: `reference`: there is no such object.
        """
        try:
            return self._records[name]
        except KeyError:
            raise ArtifactError("reference", f"no object {name!r}", path=self.path) from None

    def read_object(self, name: str) -> NDArray[np.uint8]:
        """The encoded bytes of an object: uint8 [num_bytes], read-only.

        Raises:
            ArtifactError: `reference`: there is no such object; `framing`: the file was cut.
            OSError: The file cannot be read.
        """
        record = self.record(name)
        return self.payload.view(record.offset, record.num_bytes)


def _unpack_prefix(data: bytes, file_bytes: int) -> tuple[LegacyVersion, int]:
    """The version and the length of the directory."""
    version = _MAGICS.get(data[:8])
    if version is None:
        raise _foreign(data[:8])
    if len(data) < _PREFIX.size:
        raise ArtifactError(
            "framing", "header is cut off", expected=f"{_PREFIX.size} bytes", found=len(data)
        )
    json_bytes: int = _PREFIX.unpack(data)[1]
    most = min(file_bytes - _PREFIX.size, MAX_JSON_BYTES)
    if not 1 <= json_bytes <= most:
        raise ArtifactError(
            "framing",
            "length of the directory is wrong",
            offset=8,
            expected=f"1 to {most}",
            found=json_bytes,
            hint="the file is damaged or incomplete; copy it again",
        )
    return version, json_bytes


def _payload_start(json_bytes: int, file_bytes: int) -> int:
    start = align_up(_PREFIX.size + json_bytes, FILE_ALIGNMENT)
    if start >= file_bytes:
        raise ArtifactError(
            "framing",
            "file ends before its payload",
            expected=f"more than {start} bytes",
            found=file_bytes,
            hint="the file is damaged or incomplete; copy it again",
        )
    return start


def _foreign(magic: bytes) -> ArtifactError:
    if magic == ENTRY_MAGIC:
        return ArtifactError(
            "framing",
            f"container version is {CONTAINER_VERSION} already",
            hint="it needs no upgrade",
        )
    found = f"{magic.hex(' ')} {magic!r}" if magic else "an empty file"
    expected = " or ".join(known.hex(" ") for known in _MAGICS)
    return ArtifactError(
        "framing", "not a .ninfer file of version 1 or 2", expected=expected, found=found
    )
