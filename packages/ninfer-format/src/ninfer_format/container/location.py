"""Where an error happened, for errors raised by code that knows neither the file nor the object."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike

from ninfer_format.errors import ArtifactError


@contextmanager
def located(
    path: str | PathLike[str] | None = None, object_id: str | None = None
) -> Iterator[None]:
    """Add the file and the object to an `ArtifactError` that leaves the block without them."""
    try:
        yield
    except ArtifactError as error:
        message = str(error)
        if object_id is not None and error.object_id is None:
            error.object_id = object_id
            message = f"object {object_id!r}: {message}"
        if path is not None and error.path is None:
            error.path = str(path)
            message = f"{path}: {message}"
        error.args = (message,)
        raise
