"""Paths on the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class UserPath(click.Path):
    """A `pathlib.Path` in which ``~`` is the user's folder, also where the shell left it alone.

    Args:
        exists: The path has to exist.
        dir_okay: It may be a folder.
    """

    def __init__(self, *, exists: bool = False, dir_okay: bool = True) -> None:
        super().__init__(exists=exists, dir_okay=dir_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; an empty one, which would mean the current folder, is refused."""
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(os.path.expanduser(value), param, ctx)
