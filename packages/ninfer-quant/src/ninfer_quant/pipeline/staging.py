"""A set of output files that appears whole or not at all.

The files are made in a hidden folder beside their target, because an artifact's parts carry the
name of its entry: they have their final names there, can be read back, and are then moved.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ninfer_format.errors import UsageError
from ninfer_quant.errors import DiskSpaceError

REPORT_SUFFIX = ".conversion.json"
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
    folder = output.with_name(f".{output.name}.{secrets.token_hex(8)}.tmp")
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


def publish(folder: Path, names: Sequence[str], target_folder: Path, *, force: bool) -> None:
    """Move files from a staging folder to their place, in the given order.

    Args:
        folder: Where they are.
        names: Their names; the entry comes last, so that what can be seen is complete.
        target_folder: Where they go, in the same file system.
        force: Replace what is there.

    Raises:
        UsageError: A target exists and `force` is not set; nothing stays published.
    """
    if force:
        for name in names:
            (folder / name).replace(target_folder / name)
        return
    try:
        for name in names:
            os.link(folder / name, target_folder / name)
    except BaseException as error:
        _withdraw(folder, names, target_folder)
        if isinstance(error, FileExistsError):
            raise UsageError(
                "appeared while the artifact was made", path=target_folder / name
            ) from error
        raise


def _withdraw(folder: Path, names: Sequence[str], target_folder: Path) -> None:
    # A target may be somebody else's file; ours is the one that is the staged file.
    for name in names:
        target = target_folder / name
        if target.exists() and target.samefile(folder / name):
            target.unlink()


def remove_stale_parts(output: Path, kept: Sequence[str]) -> None:
    """Remove continuation files of a replaced artifact that the new one does not have."""
    pattern = re.compile(re.escape(output.name) + r"\.part-[0-9]{4,}")
    for path in output.parent.iterdir():
        if pattern.fullmatch(path.name) and path.name not in kept:
            path.unlink()


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
