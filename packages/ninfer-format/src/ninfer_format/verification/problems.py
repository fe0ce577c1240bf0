"""One thing that is wrong with an artifact, as a row of a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ninfer_format.errors import ArtifactCategory, ArtifactError

ProblemCategory = ArtifactCategory | Literal["io", "hash"]
"""A broken rule of the format, a file that cannot be read, or bytes that have changed."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong and where.

    Attributes:
        category: Which rule is broken.
        message: What is wrong, in one line.
        object: The object concerned, if it is about one.
        offset: Offset in the logical payload, if known.
        file: Name of the file concerned, if it is about one.
    """

    category: ProblemCategory
    message: str
    object: str | None = None
    offset: int | None = None
    file: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The problem as a JSON object that always has the same members."""
        return {
            "category": self.category,
            "object": self.object,
            "file": self.file,
            "offset": self.offset,
            "message": self.message,
        }


def problem_of(
    error: ArtifactError | OSError,
    *,
    object_id: str | None = None,
    offset: int | None = None,
    file: str | None = None,
) -> Problem:
    """The problem that an error reports.

    Args:
        error: The error; it may name a file.
        object_id: The object that was read or interpreted.
        offset: Where in the logical payload.
        file: The file that was read, unless the error knows it.
    """
    if isinstance(error, ArtifactError):
        return Problem(error.category, error.summary, object_id, offset, file)
    if error.filename is not None:
        file = Path(error.filename).name
    return Problem("io", (error.strerror or str(error)).lower(), object_id, offset, file)
