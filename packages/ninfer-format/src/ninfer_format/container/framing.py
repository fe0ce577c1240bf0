"""The fixed-size headers of entry and continuation files (container specification, section 2)."""

from __future__ import annotations

import shlex
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ninfer_format.errors import ArtifactError
from ninfer_format.layouts import align_up

CONTAINER_VERSION = 3
HEADER_BYTES = 32
FILE_ALIGNMENT = 4096
"""Payload segments start at multiples of this in their file."""
MAX_JSON_BYTES = 100_000_000
"""Longest directory that is read or written: far above a real one, far below a weight file."""
SPARE_BYTES = 64_000_000
"""Reading a directory takes at most this much more memory than its file has bytes."""
U64_MAX = 2**64 - 1

ENTRY_MAGIC = b"NINFER\x00\x03"
PART_MAGIC = b"NINPRT\x00\x03"
_HEADER = struct.Struct("<8sQ16s")


@dataclass(frozen=True, slots=True)
class Header:
    """The first 32 bytes of a file of an artifact.

    Attributes:
        number: Length of the JSON text of an entry, or the index of a continuation file.
        artifact_id: 16 bytes that are the same in all files of one artifact.
    """

    number: int
    artifact_id: bytes


def pack_header(magic: bytes, number: int, artifact_id: bytes) -> bytes:
    """Make the 32 bytes of a header."""
    return _HEADER.pack(magic, number, artifact_id)


def payload_start(json_bytes: int) -> int:
    """Where the payload of an entry begins."""
    return align_up(HEADER_BYTES + json_bytes, FILE_ALIGNMENT)


def total_file_bytes(entry_payload_start: int, segments: Sequence[int]) -> int:
    """Length of all files of a set together.

    Args:
        entry_payload_start: Where the payload of the entry begins.
        segments: Payload bytes of each file, the entry first.
    """
    return entry_payload_start + FILE_ALIGNMENT * (len(segments) - 1) + sum(segments)


def unpack_entry_header(data: bytes, file_bytes: int, path: Path) -> Header:
    """Read and check the header of an entry file.

    Args:
        data: The first 32 bytes, fewer if the file is shorter.
        file_bytes: Length of the file.
        path: The file, for messages only.

    Raises:
        ArtifactError: `framing`: not an entry of this version, or the JSON text does not fit.
    """
    if data[:8] != ENTRY_MAGIC:
        raise _foreign(data, path)
    if len(data) < HEADER_BYTES:
        raise ArtifactError(
            "framing", "header is cut off", expected=f"{HEADER_BYTES} bytes", found=len(data)
        )
    _, json_bytes, artifact_id = _HEADER.unpack(data)
    if not 1 <= json_bytes <= file_bytes - HEADER_BYTES:
        raise ArtifactError(
            "framing",
            "length of the directory is wrong",
            offset=8,
            expected=f"1 to {file_bytes - HEADER_BYTES}",
            found=json_bytes,
            hint="the file is damaged or incomplete; copy it again",
        )
    if json_bytes > MAX_JSON_BYTES:
        raise ArtifactError(
            "framing",
            "directory is too long",
            offset=8,
            expected=f"at most {MAX_JSON_BYTES} bytes",
            found=json_bytes,
        )
    return Header(json_bytes, artifact_id)


def check_part_header(data: bytes, index: int, artifact_id: bytes) -> None:
    """Check that a continuation file is number `index` of the artifact `artifact_id`.

    Raises:
        ArtifactError: `part`: the header is cut off or belongs to another file.
    """
    if len(data) < HEADER_BYTES:
        raise ArtifactError(
            "part", "header is cut off", expected=f"{HEADER_BYTES} bytes", found=len(data)
        )
    magic, number, found_id = _HEADER.unpack(data)
    if magic != PART_MAGIC:
        raise ArtifactError(
            "part", "not a continuation file", expected=PART_MAGIC.hex(" "), found=magic.hex(" ")
        )
    if number != index:
        raise ArtifactError("part", "wrong part of the artifact", expected=index, found=number)
    if found_id != artifact_id:
        raise ArtifactError(
            "part",
            "part of another artifact",
            expected=f"artifact id {artifact_id.hex()}",
            found=found_id.hex(),
            hint="keep all files of one conversion together",
        )


def _foreign(data: bytes, path: Path) -> ArtifactError:
    """Say what a file is that does not begin like an entry."""
    magic = data[:8]
    if magic == PART_MAGIC:
        number = int.from_bytes(data[8:16], "little")
        return ArtifactError(
            "framing",
            f"continuation file {number} of an artifact, not its entry",
            hint="open the file that has the same name without .part-NNNN",
        )
    if len(magic) == 8 and magic[:7] == ENTRY_MAGIC[:7]:
        return ArtifactError(
            "framing",
            f"container version {magic[7]}, this release reads {CONTAINER_VERSION}",
            hint=f"ninfer-convert upgrade {shlex.quote(str(path))} new.ninfer"
            if magic[7] in (1, 2)
            else "install a newer release",
        )
    found = f"{magic.hex(' ')} {magic!r}" if magic else "an empty file"
    return ArtifactError(
        "framing", "not a .ninfer file", expected=ENTRY_MAGIC.hex(" "), found=found
    )
