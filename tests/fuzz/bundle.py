"""The files of one artifact as one string of bytes, which is what a fuzzer knows.

A bundle is a list of files, each behind its length in four bytes: the entry, then the parts, which
are called ``p1``, ``p2`` and so on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARTIFACT_ID = bytes(range(16))
MAX_PARTS = 8


def pack(files: Sequence[bytes]) -> bytes:
    """Make a bundle."""
    return b"".join(len(file).to_bytes(4, "little") + file for file in files)


def unpack(data: bytes) -> list[bytes]:
    """Take a bundle apart; any bytes are one."""
    files: list[bytes] = []
    while data and len(files) <= MAX_PARTS:
        length = int.from_bytes(data[:4], "little")
        files.append(data[4 : 4 + length])
        data = data[4 + length :]
    return files or [b""]


def write(files: Sequence[bytes], folder: Path) -> Path:
    """Write the files of a bundle into a folder and return the entry."""
    entry = folder / "x.ninfer"
    entry.write_bytes(files[0])
    for index in range(1, MAX_PARTS + 1):
        part = folder / f"p{index}"
        if index < len(files):
            part.write_bytes(files[index])
        else:
            part.unlink(missing_ok=True)
    return entry


def load(entry: Path) -> bytes:
    """The bundle of an artifact on disk, sound or not."""
    content = entry.read_bytes()
    sketch = take_apart([content])
    parts = [path for name in _part_names(sketch) if (path := entry.parent / name).is_file()]
    if sketch is None or not parts:
        return pack([content])
    for index, file in enumerate(sketch.directory["files"][1:], start=1):
        file["path"] = f"p{index}"
    return pack([put_together(sketch)[0], *(part.read_bytes() for part in parts)])


def _part_names(sketch: Sketch | None) -> list[str]:
    try:
        names = [file["path"] for file in sketch.directory["files"][1:]] if sketch else []
    except (KeyError, TypeError):
        return []
    return names if all(isinstance(name, str) and "/" not in name for name in names) else []


@dataclass
class Sketch:
    """An artifact taken apart: its directory as a JSON value, and the payload of each file."""

    directory: Any
    segments: list[bytes]


def take_apart(files: Sequence[bytes]) -> Sketch | None:
    """Take an artifact apart, or None if its directory cannot be parsed."""
    entry = files[0]
    json_bytes = int.from_bytes(entry[8:16], "little")
    try:
        directory = json.loads(entry[32 : 32 + json_bytes])
    except (ValueError, RecursionError):
        return None
    start = _payload_start(json_bytes)
    return Sketch(directory, [entry[start:], *(part[4096:] for part in files[1:])])


def put_together(sketch: Sketch) -> list[bytes]:
    """The files of an artifact; headers fit, whatever the directory says."""
    text = json.dumps(sketch.directory).encode("utf-8", "surrogatepass")
    header = b"NINFER\0\3" + len(text).to_bytes(8, "little") + ARTIFACT_ID
    files = [(header + text).ljust(_payload_start(len(text)), b"\0") + sketch.segments[0]]
    for index, segment in enumerate(sketch.segments[1:], start=1):
        header = b"NINPRT\0\3" + index.to_bytes(8, "little") + ARTIFACT_ID
        files.append(header.ljust(4096, b"\0") + segment)
    return files


def _payload_start(json_bytes: int) -> int:
    return -(-(32 + json_bytes) // 4096) * 4096
