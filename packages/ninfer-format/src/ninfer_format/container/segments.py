"""Cutting a finished directory and its payload into files (container specification, section 7.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ninfer_format.container.checks import parse_directory
from ninfer_format.container.framing import (
    FILE_ALIGNMENT,
    HEADER_BYTES,
    MAX_JSON_BYTES,
    SPARE_BYTES,
    payload_start,
    total_file_bytes,
)
from ninfer_format.container.json_text import dump_json, estimate_memory, parse_json
from ninfer_format.container.schema import Directory, FileSegment
from ninfer_format.errors import ArtifactError, FileLimitError
from ninfer_format.layouts import align_up

DEFAULT_MAX_FILE_BYTES = 32_000_000_000


@dataclass(frozen=True, slots=True)
class FileSetPlan:
    """The files of an artifact: everything in them but the payload.

    Attributes:
        directory: As it will be read back.
        json_bytes: The directory's text, padded with spaces so that the payload follows at once.
        entry_payload_start: Offset of the payload in the entry file.
        segments: Payload bytes of each file.
        entry_name: File name of the entry, from which the parts have their names.
        max_file_bytes: Limit for the length of each file.
    """

    directory: Directory
    json_bytes: bytes
    entry_payload_start: int
    segments: tuple[int, ...]
    entry_name: str
    max_file_bytes: int

    @property
    def file_bytes(self) -> int:
        """Total length of all files."""
        return total_file_bytes(self.entry_payload_start, self.segments)


def plan_files(directory: Directory, entry_name: str, max_file_bytes: int) -> FileSetPlan:
    """Cut a payload into files, with the shortest directory that holds its own table of files.

    The directory goes through the reader's own checks, so that a bad one fails before anything is
    written.

    Args:
        directory: The directory; of its files only their total length counts.
        entry_name: File name of the entry.
        max_file_bytes: Limit for the length of each file.

    Raises:
        FileLimitError: The limit leaves no room for payload, or makes an entry so short that the
            reader would not trust a directory of this length in it.
        ArtifactError: `writer`: the directory is too long; otherwise as the reader would report it.
    """
    payload_bytes = directory.payload_bytes
    value = directory.to_json()
    value["files"] = [FileSegment(None, payload_bytes).to_json()]
    text = dump_json(value)
    # Everything but the file table is final, and the checks do not depend on the cut.
    directory = parse_directory(parse_json(text), entry_name)
    reserve = 0
    while len(text) > reserve:
        reserve = align_up(HEADER_BYTES + len(text), FILE_ALIGNMENT) - HEADER_BYTES
        start = payload_start(reserve)
        segments = segment_payload(start, payload_bytes, max_file_bytes)
        files = _name_files(segments, entry_name)
        value["files"] = [file.to_json() for file in files]
        text = dump_json(value)
    text = text.ljust(reserve, b" ")
    _check_length(text, start, segments, max_file_bytes)
    return FileSetPlan(
        directory=replace(directory, files=files),
        json_bytes=text,
        entry_payload_start=start,
        segments=segments,
        entry_name=entry_name,
        max_file_bytes=max_file_bytes,
    )


def _check_length(text: bytes, start: int, segments: tuple[int, ...], max_file_bytes: int) -> None:
    """Refuse a directory that the reader would refuse for its length or the memory it takes."""
    if len(text) > MAX_JSON_BYTES:
        raise ArtifactError(
            "writer",
            "directory is too long",
            expected=f"at most {MAX_JSON_BYTES} bytes",
            found=len(text),
        )
    needed = estimate_memory(text) - SPARE_BYTES
    if needed <= start + segments[0]:
        return
    if needed <= start + sum(segments):
        raise FileLimitError(align_up(needed, FILE_ALIGNMENT), max_file_bytes)
    raise ArtifactError(
        "writer",
        "directory would take too much memory to be read",
        expected=f"at most {start + sum(segments) + SPARE_BYTES} bytes",
        found=f"up to {needed + SPARE_BYTES}",
    )


def segment_payload(
    entry_payload_start: int, payload_bytes: int, max_file_bytes: int
) -> tuple[int, ...]:
    """Cut a payload into files of at most `max_file_bytes`.

    All but the last segment are multiples of 4096 bytes long.

    Returns:
        Payload bytes of each file, the entry first.

    Raises:
        FileLimitError: A file of that size holds no payload.
    """
    if entry_payload_start + payload_bytes <= max_file_bytes:
        return (payload_bytes,)
    first = (max_file_bytes - entry_payload_start) // FILE_ALIGNMENT * FILE_ALIGNMENT
    other = (max_file_bytes - FILE_ALIGNMENT) // FILE_ALIGNMENT * FILE_ALIGNMENT
    if first <= 0 or other <= 0:
        raise FileLimitError(entry_payload_start + FILE_ALIGNMENT, max_file_bytes)
    full, rest = divmod(payload_bytes - first, other)
    return (first, *[other] * full, *([rest] if rest else []))


def _name_files(segments: Sequence[int], entry_name: str) -> tuple[FileSegment, ...]:
    first, *others = segments
    parts = (
        FileSegment(f"{entry_name}.part-{index:04d}", payload_bytes)
        for index, payload_bytes in enumerate(others, start=1)
    )
    return (FileSegment(None, first), *parts)
