"""SHA-256 of files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

from ninfer_quant.pipeline.workers import Advance, run_tasks

_CHUNK_BYTES = 1 << 22


def hash_files(paths: Sequence[Path], *, jobs: int, advance: Advance) -> dict[Path, str]:
    """Hash files in parallel; `advance` counts their bytes."""
    digests = run_tasks([partial(_hash_file, path) for path in paths], jobs=jobs, advance=advance)
    return dict(zip(paths, digests, strict=True))


def _hash_file(path: Path, advance: Advance) -> str:
    digest = sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            advance(len(chunk), path.name)
    return digest.hexdigest()
