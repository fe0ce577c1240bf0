"""Opening files of an artifact."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import BinaryIO

from ninfer_format.errors import ArtifactCategory, ArtifactError


def open_regular_file(path: Path, category: ArtifactCategory) -> BinaryIO:
    """Open a file for reading, but no pipe or device, which could make the reader wait for ever.

    Args:
        path: The file; links are followed.
        category: What a file of another kind breaks.

    Raises:
        ArtifactError: `category`: not a regular file.
        OSError: It is absent, a folder, or cannot be read.
    """
    mode = path.stat().st_mode
    # Opening a folder fails by itself, and says so.
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ArtifactError(
            category,
            "not a regular file",
            path=path,
            hint="artifacts are mapped into memory, so they cannot be piped",
        )
    return path.open("rb")
