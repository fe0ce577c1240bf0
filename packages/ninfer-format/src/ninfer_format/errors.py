"""Errors that every package of the project shares.

One tree, so that a caller can catch at the level it needs::

    NInferError
    ├── UsageError              an option, a combination of options or an input file of a command
    ├── ArtifactError           a `.ninfer` file breaks the container, a layout or a format
    │   └── FileLimitError      the limit for the length of its files is too small
    ├── CheckpointError         a source checkpoint is incomplete or contradicts itself
    └── UnsupportedConfigError  a configuration value that would change the mathematics

The packages above add their own subclasses. Each error carries what a person needs to act
(what, where, expected, found, what to do) and what a command needs to end (``exit_code``).
"""

from __future__ import annotations

from enum import IntEnum
from os import PathLike
from typing import Any, Literal


class ExitCode(IntEnum):
    """Process exit codes of every command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    INVALID_INPUT = 3
    CAPACITY = 4
    UNAVAILABLE = 5
    INTERNAL = 70
    INTERRUPTED = 130


class NInferError(Exception):
    """Base of every error that this project raises on purpose.

    Args:
        message: One line that says what is wrong, what was expected and what was found.
        path: The file that the error is about, if any. It is put before the message.
        hint: What to do about it, if that is known.
    """

    code: str = "error"
    exit_code: ExitCode = ExitCode.FAILED

    def __init__(
        self,
        message: str,
        *,
        path: str | PathLike[str] | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message if path is None else f"{path}: {message}")
        self.path = None if path is None else str(path)
        self.hint = hint


class UsageError(NInferError):
    """An option, a combination of options or a file given on the command line is wrong."""

    code = "usage"
    exit_code = ExitCode.USAGE


ArtifactCategory = Literal[
    "framing",
    "json",
    "schema",
    "files",
    "objects",
    "reference",
    "encoding",
    "part",
    "range",
    "codec",
    "writer",
]
"""The closed list of what can be wrong with an artifact (container specification, section 6)."""


class ArtifactError(NInferError, ValueError):
    """A `.ninfer` file, or what is about to become one, breaks the format.

    Args:
        category: Which rule was broken; one of `ArtifactCategory`.
        message: What is wrong, in one line.
        path: The file.
        object_id: The object of the directory that the error is about.
        offset: Byte offset in the file or in the logical payload.
        expected: What the format asks for.
        found: What is there.
        hint: What to do about it.

    Attributes:
        summary: The message without path, object and offset, for tables that have columns for them.
    """

    exit_code = ExitCode.INVALID_INPUT

    def __init__(
        self,
        category: ArtifactCategory,
        message: str,
        *,
        path: str | PathLike[str] | None = None,
        object_id: str | None = None,
        offset: int | None = None,
        expected: Any = None,
        found: Any = None,
        hint: str | None = None,
    ) -> None:
        where = "" if object_id is None else f"object {object_id!r}: "
        at = "" if offset is None else f" at byte {offset}"
        compared = "" if expected is None else f" (expected {expected}, found {found})"
        super().__init__(f"{where}{message}{at}{compared}", path=path, hint=hint)
        self.summary = f"{message}{compared}"
        self.category: ArtifactCategory = category
        self.code = f"artifact_{category}"
        self.object_id = object_id
        self.offset = offset
        self.expected = expected
        self.found = found


class FileLimitError(ArtifactError):
    """The limit for the length of a file leaves no room for payload.

    Args:
        smallest: No lower limit would do, in bytes; a longer table of files may need more.
        limit: The limit.
    """

    def __init__(self, smallest: int, limit: int) -> None:
        super().__init__(
            "writer",
            "file size limit leaves no room for payload beside header and directory",
            expected=f"at least {smallest} bytes",
            found=limit,
        )
        self.smallest = smallest
        self.limit = limit


class CheckpointError(NInferError, ValueError):
    """A source checkpoint is unreadable, incomplete or contradicts its own configuration.

    Args:
        message: What is wrong, in one line.
        path: The checkpoint folder or file.
        tensors: Names of the tensors concerned; all of them, not only the first.
        hint: What to do about it.
    """

    code = "checkpoint"
    exit_code = ExitCode.INVALID_INPUT

    def __init__(
        self,
        message: str,
        *,
        path: str | PathLike[str] | None = None,
        tensors: tuple[str, ...] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.tensors = tensors


class UnsupportedConfigError(NInferError, ValueError):
    """A configuration value would change the mathematics in a way that is not implemented.

    Args:
        key: The key in the configuration, with dots for nesting.
        value: The value that was found.
        expected: What is supported, in words.
        path: The configuration file.
    """

    code = "unsupported_config"
    exit_code = ExitCode.UNAVAILABLE

    def __init__(
        self, key: str, value: object, *, expected: str, path: str | PathLike[str] | None = None
    ) -> None:
        super().__init__(f"{key} = {value!r} is not supported (expected {expected})", path=path)
        self.key = key
        self.value = value
        self.expected = expected
