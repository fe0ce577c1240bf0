"""Writing an edited artifact and reading it back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path

from ninfer_format.container.reader import open_artifact
from ninfer_format.container.rewrite import Addition, PayloadSource, rewrite_artifact
from ninfer_format.container.schema import Directory
from ninfer_format.container.segments import DEFAULT_MAX_FILE_BYTES
from ninfer_format.errors import ArtifactError


def rewrite_checked(
    out: str | PathLike[str],
    directory: Directory,
    *,
    payload: PayloadSource,
    kept_bytes: int,
    additions: Sequence[Addition] = (),
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES,
    advance: Callable[[int], None] | None = None,
) -> Path:
    """Write a payload under a new directory, open the result and compare what it says.

    Args:
        out: The entry file to be.
        directory: The new directory; its objects are those in the kept bytes, its files are not
            looked at.
        payload: The payload to copy from.
        kept_bytes: How much of it to keep.
        additions: New objects, put behind it.
        max_file_bytes: Limit for the length of each file.
        advance: Is told how many bytes have been copied, chunk by chunk.

    Returns:
        The entry file.

    Raises:
        FileExistsError: The entry or a part exists.
        ArtifactError: As `rewrite_artifact`; or `writer`: what was written is not what was meant.
        OSError: A file cannot be read, or the disk is full.
    """
    entry = rewrite_artifact(
        out,
        payload=payload,
        kept_bytes=kept_bytes,
        objects=directory.objects,
        additions=additions,
        components=directory.components,
        bindings=directory.bindings,
        uses=directory.uses,
        metadata=directory.metadata,
        provenance=directory.provenance,
        max_file_bytes=max_file_bytes,
        advance=advance,
    )
    try:
        _check(entry, directory, [addition.spec.id for addition in additions])
    except BaseException:
        remove_artifact(entry)
        raise
    return entry


def remove_artifact(entry: Path) -> None:
    """Remove an artifact that was just written, the entry first."""
    paths: tuple[Path, ...] = (entry,)
    # What cannot be opened is nobody's artifact without its entry.
    with suppress(ArtifactError, OSError), open_artifact(entry) as artifact:
        paths = artifact.file_paths
    for path in paths:
        path.unlink(missing_ok=True)


def _check(entry: Path, expected: Directory, added: Sequence[str]) -> None:
    with open_artifact(entry) as artifact:
        # Opens and checks every file of the set.
        artifact.payload.require(0, artifact.payload_bytes)
        found = artifact.directory
    kept = tuple(record for record in found.objects if record.id not in added)
    if replace(found, objects=kept, files=expected.files) != expected:
        raise ArtifactError("writer", "was not written as it was meant", path=entry)
