"""Opening artifacts: header and directory at once, everything else when it is asked for."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from ninfer_format.container.artifact import Artifact
from ninfer_format.container.checks import parse_directory
from ninfer_format.container.framing import (
    HEADER_BYTES,
    SPARE_BYTES,
    payload_start,
    unpack_entry_header,
)
from ninfer_format.container.json_text import parse_json
from ninfer_format.container.location import located
from ninfer_format.container.payload import Payload
from ninfer_format.container.regular_file import open_regular_file
from ninfer_format.container.segment_file import SegmentFile
from ninfer_format.errors import ArtifactError


def open_artifact(path: str | PathLike[str]) -> Artifact:
    """Open an artifact by its entry file.

    Header and directory are read and checked; objects and continuation files are not touched.

    Raises:
        ArtifactError: The file is not an artifact of this version or breaks a rule; see
            `ArtifactError.category`.
        OSError: The file cannot be read.
    """
    entry = Path(path)
    with open_regular_file(entry, "framing") as file, located(entry):
        file_bytes = file.seek(0, 2)
        file.seek(0)
        header = unpack_entry_header(file.read(HEADER_BYTES), file_bytes, entry)
        with _collector_paused():
            root = parse_json(file.read(header.number), max_bytes=file_bytes + SPARE_BYTES)
            directory = parse_directory(root, entry.name)
        start = payload_start(header.number)
        _check_length(start + directory.files[0].payload_bytes, file_bytes)
        segment_file = SegmentFile(entry, file, file_bytes, "framing")
    payload = Payload(segment_file, start, directory.files, header.artifact_id)
    return Artifact(entry, header.artifact_id, directory, payload, start)


def _check_length(expected: int, found: int) -> None:
    if expected != found:
        raise ArtifactError(
            "framing",
            "wrong file length",
            expected=f"{expected} bytes",
            found=found,
            hint="the file is damaged or incomplete; copy it again",
        )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from walking a large directory again and again as it grows."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
