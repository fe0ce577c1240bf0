"""Output files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ninfer_format.errors import UsageError
from ninfer_format.publish import StagedFiles


def refuse_existing(path: Path, *, force: bool | None = False) -> None:
    """Refuse an output path that exists already.

    Args:
        path: Where the output will go.
        force: The user allowed an existing file to be replaced; None if the command cannot
            replace files.

    Raises:
        UsageError: The path exists and `force` is not set, or is a folder, a device or a pipe.
    """
    if path.is_dir():
        raise UsageError("output path is a folder", path=path)
    if path.exists() and not path.is_file():
        # Publishing would put a file in its place.
        raise UsageError("output path is a device or a pipe", path=path)
    if not force and (path.exists() or path.is_symlink()):
        choices = "choose another path" if force is None else "choose another path or give --force"
        raise UsageError("output exists already", path=path, hint=choices)


def refuse_inputs_as_outputs(outputs: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Refuse to write over a file that is read, whatever name it goes by.

    Raises:
        UsageError: An output is the same file as an input, also through a link.
    """
    existing = [path for path in inputs if path.exists()]
    for output in outputs:
        if output.exists():
            for path in existing:
                if output.samefile(path):
                    raise UsageError(f"output is the same file as input {path}", path=output)


@contextmanager
def new_output(path: Path, *, force: bool | None = False) -> Iterator[BinaryIO]:
    """Open a temporary sibling of `path` that becomes `path` when the block succeeds.

    Args:
        path: The file to write.
        force: Replace an existing file; None if the command cannot.

    Yields:
        A binary file. After an exception nothing remains of it.
    """
    refuse_existing(path, force=force)
    with StagedFiles() as staged:
        with os.fdopen(staged.create(path), "wb", closefd=False) as file:
            yield file
        if force:
            staged.publish_replacing()
        else:
            staged.publish_new()
