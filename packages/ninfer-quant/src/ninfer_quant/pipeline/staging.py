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
from ninfer_format.edit.attach import REPORT_SUFFIX as ATTACH_REPORT_SUFFIX
from ninfer_format.errors import ArtifactError, UsageError
from ninfer_format.publish import StagedFiles, hidden_sibling
from ninfer_format.verification.conversion_report import REPORT_SUFFIX
from ninfer_quant.errors import DiskSpaceError

REPORT_SUFFIXES = (REPORT_SUFFIX, ATTACH_REPORT_SUFFIX)
"""What the names of reports add to the name of the artifact that they are about."""
MAX_NAME_BYTES = 255
"""Longest file name of the usual file systems."""
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


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
        force: Replace what is there, continuation files and reports that only the old artifact
            has included.

    Raises:
        UsageError: A target exists and `force` is not set; nothing stays published.
    """
    with StagedFiles() as staged:
        for name in names:
            staged.adopt(folder / name, output.with_name(name))
        if force:
            old = [*old_parts(output), *old_reports(output)]
            staged.publish_replacing([path for path in old if path.name not in names])
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
            parts = artifact.file_paths[1:]
    except (OSError, ArtifactError):
        # Nothing, or nothing that can be read: then no other file is known to belong to it.
        return []
    return [path for path in parts if path.is_file()]


def old_reports(output: Path) -> list[Path]:
    """Reports about an artifact of that name; they are not about the one that replaces it."""
    reports = (output.with_name(output.name + suffix) for suffix in REPORT_SUFFIXES)
    return [path for path in reports if path.is_file()]


@contextmanager
def disk_full_as_error(output: Path) -> Iterator[None]:
    """Turn the operating system's "no space left" and "file too large" into `DiskSpaceError`."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise DiskSpaceError(
                "the file system takes no file of this length",
                path=output,
                hint="give a smaller --max-file-bytes",
            ) from error
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
