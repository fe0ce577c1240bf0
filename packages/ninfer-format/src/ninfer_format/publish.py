"""Files that appear whole or not at all.

A new file is written under a temporary name beside its target, so that publishing is a rename or a
hard link within one file system, and anyone who looks at the folder sees either nothing or the
finished file.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self


def hidden_sibling(target: Path) -> Path:
    """A new hidden name beside `target`; nothing is created."""
    # Not the whole name: the longest legal one has no room for an addition.
    return target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}.tmp")


@dataclass(slots=True)
class _Staged:
    target: Path
    temporary: Path
    descriptor: int | None = None


@dataclass(slots=True)
class StagedFiles:
    """New files under temporary names, published together; a context manager.

    Leaving the block without having published removes everything, published targets of a
    half-finished `publish_new` included.
    """

    _files: list[_Staged] = field(default_factory=list)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove whatever was not published."""
        self.discard()

    def create(self, target: Path, num_bytes: int = 0) -> int:
        """Create a temporary sibling of `target`, filled with zeros.

        Args:
            target: Where the file will be published. Nothing is checked about it here.
            num_bytes: Initial length.

        Returns:
            A file descriptor for reading and writing, owned by this object. The file has the
            permissions that the process gives to new files.
        """
        staged = _Staged(target, hidden_sibling(target))
        # Known before it exists: an interruption between the two leaves nothing behind.
        self._files.append(staged)
        staged.descriptor = os.open(
            staged.temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666
        )
        if num_bytes:
            os.ftruncate(staged.descriptor, num_bytes)
        return staged.descriptor

    def adopt(self, temporary: Path, target: Path) -> None:
        """Take a finished file, which is to be published as `target` in the same file system."""
        descriptor = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
        self._files.append(_Staged(target, temporary, descriptor))

    def publish_new(self) -> None:
        """Flush all files to disk and give them their names, in the order they were staged.

        Raises:
            FileExistsError: A target exists; it is left as it is, and none is published.
        """
        self._flush()
        self._link()
        self.discard()

    def publish_replacing(self, retired: Sequence[Path] = ()) -> None:
        """Flush all files to disk and give them their names, replacing what is there.

        One file takes the place of another in one step. Of several files the old ones are moved
        aside first, in reverse order, and are back in their place if anything fails: old and new
        files are never to be seen together.

        Args:
            retired: More files that disappear when the new ones appear.
        """
        self._flush()
        if len(self._files) == 1 and not retired:
            (staged,) = self._files
            staged.temporary.replace(staged.target)
            self._sync_folders()
        else:
            targets = [staged.target for staged in reversed(self._files)]
            with _moved_aside([*targets, *retired]):
                self._link()
        self.discard()

    def discard(self) -> None:
        """Close and remove all files that are not published."""
        for staged in self._files:
            _close(staged)
            staged.temporary.unlink(missing_ok=True)
        self._files.clear()

    def _flush(self) -> None:
        for staged in self._files:
            if staged.descriptor is not None:
                os.fsync(staged.descriptor)
                _close(staged)

    def _link(self) -> None:
        """Give all files their names, or none."""
        try:
            for staged in self._files:
                os.link(staged.temporary, staged.target)
            self._sync_folders()
        except BaseException:
            self._withdraw()
            raise

    def _withdraw(self) -> None:
        # A target may be somebody else's file; ours is the one that is the temporary file.
        for staged in self._files:
            if staged.target.exists() and staged.target.samefile(staged.temporary):
                staged.target.unlink()

    def _sync_folders(self) -> None:
        """Make the new names survive a power failure."""
        for folder in {staged.target.parent for staged in self._files}:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


@contextmanager
def _moved_aside(paths: Sequence[Path]) -> Iterator[None]:
    """Hide the files among `paths`; they are gone after the block, or back after an exception."""
    moved: list[tuple[Path, Path]] = []
    try:
        for path in paths:
            if os.path.lexists(path):
                # Known before it is moved: an interruption between the two loses nothing.
                moved.append((path, hidden_sibling(path)))
                path.rename(moved[-1][1])
        yield
    except BaseException:
        for path, aside in reversed(moved):
            if os.path.lexists(aside):
                aside.rename(path)
        raise
    for _, aside in moved:
        aside.unlink()


def _close(staged: _Staged) -> None:
    if staged.descriptor is not None:
        descriptor, staged.descriptor = staged.descriptor, None
        os.close(descriptor)
