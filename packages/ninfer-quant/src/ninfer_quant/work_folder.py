"""A folder of unfinished work that belongs to one set of settings and one process at a time."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ninfer_format.commandline import new_output
from ninfer_format.errors import UsageError

_SETTINGS = "settings.json"


@contextmanager
def locked_work_folder(folder: Path, settings: Mapping[str, str], work: str) -> Iterator[None]:
    """Make the folder, or check that what is in it belongs to the same work, and lock it.

    Args:
        folder: The folder; it stays when the block is left.
        settings: What the work depends on.
        work: What messages call it, for example ``calibration``.

    Raises:
        UsageError: The folder is of other settings, or in use.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"another {work} is using the work folder", path=folder) from error
        _check_settings(folder, settings, work)
        yield
    finally:
        os.close(descriptor)


def _check_settings(folder: Path, settings: Mapping[str, str], work: str) -> None:
    path = folder / _SETTINGS
    if not path.exists():
        with new_output(path) as file:
            file.write(f"{json.dumps(settings, ensure_ascii=False, indent=2)}\n".encode())
        return
    try:
        known: Any = json.loads(path.read_bytes())
    except ValueError:
        known = {}
    if not isinstance(known, dict):
        known = {}
    different = [key for key in settings if known.get(key) != settings[key]]
    if different:
        raise UsageError(
            f"the work folder is of a {work} with other settings: {', '.join(different)}",
            path=folder,
            hint="remove the folder to begin anew, or give the same options to resume it",
        )
