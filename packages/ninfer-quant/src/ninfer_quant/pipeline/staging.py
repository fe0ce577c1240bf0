"""A set of output files that appears whole or not at all.

The files are made in a hidden folder beside their target, because an artifact's parts carry the
name of its entry: they have their final names there, can be read back, and are then moved.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ninfer_format import open_artifact
from ninfer_format.errors import ArtifactError, UsageError
from ninfer_format.publish import StagedFiles, hidden_sibling
from ninfer_quant.errors import DiskSpaceError

REPORT_SUFFIX = ".conversion.json"
MAX_NAME_BYTES = 255
"""Longest file name of the usual file systems."""
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


def report_path(output: Path) -> Path:
    """Where the conversion report of an artifact lies."""
    return output.with_name(output.name + REPORT_SUFFIX)


@contextmanager
def staging_folder(output: Path) -> Iterator[Path]:
    """Make a hidden folder beside `output` and remove it, with all that is left in it, at the end.

    Folders above `output` are made if they are missing, and removed again if nothing came of it.
    """
    made = [folder for folder in output.parents if not folder.exists()]
    folder = hidden_sibling(output)
    try:
        folder.mkdir(parents=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for parent in made:
            _remove_if_empty(parent)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def publish(folder: Path, names: Sequence[str], output: Path, *, force: bool) -> None:
    """Move files from a staging folder to their place beside `output`, in the given order.

    Args:
        folder: Where they are.
        names: Their names; the entry comes last, so that what can be seen is complete.
        output: The entry, in the same file system.
        force: Replace what is there, continuation files that only the old artifact has included.

    Raises:
        UsageError: A target exists and `force` is not set; nothing stays published.
    """
    with StagedFiles() as staged:
        for name in names:
            staged.adopt(folder / name, output.with_name(name))
        if force:
            staged.publish_replacing([p for p in old_parts(output) if p.name not in names])
            return
        try:
            staged.publish_new()
        except FileExistsError as error:
            raise UsageError(
                "appeared while the artifact was made", path=error.filename2
            ) from error


def old_parts(output: Path) -> list[Path]:
    """Continuation files that an artifact at `output` says are its own, as far as they exist."""
    try:
        with open_artifact(output) as artifact:
            names = [file.path for file in artifact.directory.files if file.path is not None]
    except (OSError, ArtifactError):
        # Nothing, or nothing that can be read: then no other file is known to belong to it.
        return []
    return [path for path in map(output.with_name, names) if path.is_file()]


@contextmanager
def disk_full_as_error(output: Path) -> Iterator[None]:
    """Turn the operating system's "no space left" into `DiskSpaceError`."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise DiskSpaceError("no space left on the disk", path=output) from error
        raise


def check_disk_space(output: Path, num_bytes: int) -> None:
    """Refuse to start what cannot fit.

    Raises:
        DiskSpaceError: The disk of `output` has less than `num_bytes` left.
    """
    existing = next(folder for folder in output.absolute().parents if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < num_bytes:
        raise DiskSpaceError(
            f"the artifact needs {num_bytes} bytes, the disk has {free} left", path=output
        )


def refuse_impossible_names(outputs: Sequence[Path]) -> None:
    """Refuse outputs whose names are longer than a file system takes.

    Raises:
        UsageError: A name has more than `MAX_NAME_BYTES` bytes.
    """
    for output in outputs:
        length = len(os.fsencode(output.name))
        if length > MAX_NAME_BYTES:
            raise UsageError(
                f"file name has {length} bytes (expected at most {MAX_NAME_BYTES})",
                path=output,
                hint="choose a shorter name for the artifact",
            )


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
