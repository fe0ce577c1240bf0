"""Files that appear whole or not at all.

A new file is written under a temporary name beside its target, so that publishing is a rename or a
hard link within one file system, and anyone who looks at the folder sees either nothing or the
finished file.

A signal may end the work between any two steps. What is to be removed is therefore noted before it
exists and forgotten after it is gone, and removed at the latest when the program ends.
"""

from __future__ import annotations

import errno
import os
import secrets
import weakref
from collections.abc import Sequence
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
class _Leftovers:
    """What is removed in the end: temporary names, replaced files, and folders if empty."""

    files: list[_Staged] = field(default_factory=list)
    replaced: list[Path] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)

    def remove(self) -> None:
        """Remove everything; may be called again after it was interrupted."""
        while self.files:
            _close(self.files[-1])
            self.files[-1].temporary.unlink(missing_ok=True)
            self.files.pop()
        while self.replaced:
            self.replaced[-1].unlink(missing_ok=True)
            self.replaced.pop()
        while self.folders:
            _remove_if_empty(self.folders[-1])
            self.folders.pop()


class StagedFiles:
    """New files under temporary names, published together; a context manager.

    Leaving the block without having published removes everything, published targets of a
    half-finished `publish_new` included.
    """

    def __init__(self) -> None:
        self._leftovers = _Leftovers()
        # A signal may arrive just when the block is left, before anything could be removed.
        self._finalizer = weakref.finalize(self, self._leftovers.remove)

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

    def make_folder(self, folder: Path) -> None:
        """Create a folder and those above it where they are missing; removed again if empty."""
        self._leftovers.folders += [
            missing for missing in (*reversed(folder.parents), folder) if not missing.exists()
        ]
        folder.mkdir(parents=True, exist_ok=True)

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
        self._leftovers.files.append(staged)
        staged.descriptor = os.open(
            staged.temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666
        )
        if num_bytes:
            os.ftruncate(staged.descriptor, num_bytes)
        return staged.descriptor

    def adopt(self, temporary: Path, target: Path) -> None:
        """Take a finished file, which is to be published as `target` in the same file system."""
        descriptor = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
        self._leftovers.files.append(_Staged(target, temporary, descriptor))

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
        if len(self._leftovers.files) == 1 and not retired:
            (staged,) = self._leftovers.files
            staged.temporary.replace(staged.target)
            self._sync_folders()
        else:
            targets = [staged.target for staged in reversed(self._leftovers.files)]
            self._exchange([*targets, *retired])
        self.discard()

    def discard(self) -> None:
        """Close and remove all files that are not published."""
        self._leftovers.remove()
        self._finalizer.detach()

    def _flush(self) -> None:
        for staged in self._leftovers.files:
            if staged.descriptor is not None:
                os.fsync(staged.descriptor)
                _close(staged)

    def _link(self) -> None:
        """Give all files their names, or none."""
        try:
            for staged in self._leftovers.files:
                os.link(staged.temporary, staged.target)
            self._sync_folders()
        except BaseException:
            self._withdraw()
            raise

    def _withdraw(self) -> None:
        # A target may be somebody else's file; ours is the one that is the temporary file.
        for staged in self._leftovers.files:
            if staged.target.exists() and staged.target.samefile(staged.temporary):
                staged.target.unlink()

    def _exchange(self, old: Sequence[Path]) -> None:
        """Give all files their names in the place of `old`, or leave everything as it was."""
        moved: list[tuple[Path, Path]] = []
        try:
            for path in old:
                if os.path.lexists(path):
                    moved.append((path, hidden_sibling(path)))
                    path.rename(moved[-1][1])
            self._link()
            # Removed together with the temporary names, so that a signal in between loses nothing.
            self._leftovers.replaced.extend([aside for _, aside in moved])
        except BaseException:
            self._withdraw()
            for path, aside in reversed(moved):
                if os.path.lexists(aside):
                    aside.rename(path)
            raise

    def _sync_folders(self) -> None:
        """Make the new names survive a power failure."""
        folders = {staged.target.parent for staged in self._leftovers.files}
        folders |= {folder.parent for folder in self._leftovers.folders}
        for folder in folders:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _close(staged: _Staged) -> None:
    if staged.descriptor is not None:
        descriptor, staged.descriptor = staged.descriptor, None
        os.close(descriptor)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
