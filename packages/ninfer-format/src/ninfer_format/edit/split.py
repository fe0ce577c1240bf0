"""Cutting an artifact into files of another length."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from ninfer_format.container.artifact import Artifact
from ninfer_format.edit.checked_rewrite import rewrite_checked


def split_artifact(
    source: Artifact,
    out: str | PathLike[str],
    max_file_bytes: int,
    *,
    advance: Callable[[int], None] | None = None,
) -> Path:
    """Write the same artifact with another limit for the length of its files.

    Args:
        source: The artifact; any number of files.
        out: The entry file to be; it is not replaced.
        max_file_bytes: Limit for the length of each file.
        advance: Is told how many bytes have been copied, chunk by chunk.

    Returns:
        The entry file.

    Raises:
        FileExistsError: The entry or a part exists.
        FileLimitError: The limit leaves no room for payload.
        ArtifactError: As reading `source` reports it.
        OSError: A file cannot be read, or the disk is full.
    """
    return rewrite_checked(
        out,
        source.directory,
        payload=source.payload,
        kept_bytes=source.payload_bytes,
        max_file_bytes=max_file_bytes,
        advance=advance,
    )
