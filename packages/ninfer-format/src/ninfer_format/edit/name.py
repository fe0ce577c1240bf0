"""Giving an artifact another name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path

from ninfer_format.container.artifact import Artifact
from ninfer_format.container.segments import DEFAULT_MAX_FILE_BYTES
from ninfer_format.edit.checked_rewrite import rewrite_checked
from ninfer_format.errors import UsageError


def rename_artifact(
    source: Artifact,
    out: str | PathLike[str],
    name: str,
    *,
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES,
    advance: Callable[[int], None] | None = None,
) -> Path:
    """Write the same artifact with another name in its metadata.

    Args:
        source: The artifact; any number of files.
        out: The entry file to be; it is not replaced.
        name: The name: not empty, no U+0000.
        max_file_bytes: Limit for the length of each file.
        advance: Is told how many bytes have been copied, chunk by chunk.

    Returns:
        The entry file.

    Raises:
        UsageError: It has this name already.
        FileExistsError: The entry or a part exists.
        ArtifactError: `schema`: `name` is no name; otherwise as reading `source` reports it.
        OSError: A file cannot be read, or the disk is full.
    """
    directory = source.directory
    if directory.name == name:
        raise UsageError(f"its name is {name!r} already", path=source.path)
    return rewrite_checked(
        out,
        replace(directory, metadata={**directory.metadata, "name": name}),
        payload=source.payload,
        kept_bytes=source.payload_bytes,
        max_file_bytes=max_file_bytes,
        advance=advance,
    )
