"""SHA-256 of the parts of an artifact: its files, its directory, each of its objects."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

from ninfer_format.container.artifact import Artifact
from ninfer_format.container.framing import total_file_bytes
from ninfer_format.container.schema import ObjectRecord
from ninfer_format.workers import Advance, run_tasks

_CHUNK_BYTES = 1 << 20


def hash_files(paths: Sequence[Path], *, jobs: int, advance: Advance) -> dict[Path, str]:
    """Hash files in parallel; `advance` counts their bytes."""
    digests = run_tasks([partial(hash_file, path) for path in paths], jobs=jobs, advance=advance)
    return dict(zip(paths, digests, strict=True))


def hash_objects(artifact: Artifact, *, jobs: int, advance: Advance) -> dict[str, str]:
    """Hash the encoded bytes of all objects in parallel; `advance` counts them."""
    records = artifact.directory.objects
    tasks = [partial(hash_object, artifact, record) for record in records]
    digests = run_tasks(tasks, jobs=jobs, advance=advance)
    return {record.id: digest for record, digest in zip(records, digests, strict=True)}


def hash_file(path: Path, advance: Advance) -> str:
    """Hash one file: 64 lower-case hex digits."""
    digest = sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            advance(len(chunk), path.name)
    return digest.hexdigest()


def hash_object(artifact: Artifact, record: ObjectRecord, advance: Advance) -> str:
    """Hash the encoded bytes of one object."""
    digest = sha256()
    buffer = bytearray(min(_CHUNK_BYTES, record.num_bytes))
    for offset in range(record.offset, record.end, _CHUNK_BYTES):
        view = memoryview(buffer)[: record.end - offset]
        artifact.payload.read_into(offset, view)
        digest.update(view)
        advance(view.nbytes, record.id)
    return digest.hexdigest()


def directory_bytes(artifact: Artifact) -> int:
    """Length of what precedes the payload in the entry: header, directory and alignment."""
    segments = [file.payload_bytes for file in artifact.directory.files]
    return artifact.file_bytes - total_file_bytes(0, segments)


def hash_directory(artifact: Artifact) -> str:
    """Hash what precedes the payload in the entry."""
    with artifact.path.open("rb") as file:
        return sha256(file.read(directory_bytes(artifact))).hexdigest()
