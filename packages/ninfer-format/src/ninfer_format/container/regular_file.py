"""Opening files of an artifact."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ninfer_format.errors import ArtifactCategory, ArtifactError


@contextmanager
def open_regular_file(path: Path, category: ArtifactCategory) -> Iterator[BinaryIO]:
    """Open a file for reading, but no pipe or device, which could make the reader wait for ever.

    Links are followed, of the entry and of its parts alike: a download cache keeps a folder of
    links to its files. Parts are looked for beside the name that was opened, not beside what it
    leads to.

    Args:
        path: The file.
        category: What a file of another kind breaks.

    Yields:
        The file at its beginning.

    Raises:
        ArtifactError: `category`: not a regular file.
        OSError: It is absent, a folder, or cannot be read.
    """
    # Looked at once it is open, so that no other file can take its place in between.
    with open(path, "rb", opener=_open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ArtifactError(
                category,
                "not a regular file",
                path=path,
                hint="artifacts are read at any place, so they cannot be piped",
            )
        yield file


def _open_without_waiting(path: str, flags: int) -> int:
    # Opening a pipe for reading waits for a writer otherwise; files do not know the difference.
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
