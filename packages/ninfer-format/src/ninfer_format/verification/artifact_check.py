"""All checks of one artifact, with what they cost before they run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ninfer_format.container.artifact import Artifact
from ninfer_format.errors import ArtifactError
from ninfer_format.verification.conversion_report import read_report, report_path
from ninfer_format.verification.divisors import divisor_problems
from ninfer_format.verification.known_hashes import KnownHashes
from ninfer_format.verification.problems import Problem, problem_of
from ninfer_format.verification.structure import check_structure
from ninfer_format.verification.words import CheckTask, words_tasks
from ninfer_format.workers import Advance, run_tasks


@dataclass(frozen=True, slots=True)
class Checked:
    """What was looked at.

    Attributes:
        objects: Objects of which every word was read.
        skipped_objects: Objects that could not be read, because of problems that are listed.
        payload_bytes: Encoded size of the objects that were read.
        report: Name of the conversion report whose hashes were compared, None without one.
        object_hashes: Number of objects whose hash was compared.
        file_hashes: Number of files whose hash was compared as a whole.
        directory_hash: Whether the hash of header and directory was compared.
    """

    objects: int
    skipped_objects: int
    payload_bytes: int
    report: str | None
    object_hashes: int
    file_hashes: int
    directory_hash: bool

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome of all checks.

    Attributes:
        problems: What is wrong: structure first, then in payload order.
        notes: What is legal but worth knowing, in words.
        checked: What was looked at.
    """

    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    checked: Checked


class ArtifactCheck:
    """The checks of one open artifact.

    Making it checks the structure and reads the conversion report beside the artifact, if there is
    one; `run` reads every byte of every object.

    Args:
        artifact: The artifact.
    """

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._structure = check_structure(artifact)
        self._readable = {record.id: record for record in self._structure.readable}
        self._hashes: KnownHashes | None = None
        self._report_problem: Problem | None = None
        self._open_report()

    @property
    def total_bytes(self) -> int:
        """What `run` will count: bytes to be read, twice where they are hashed as well."""
        hashed = 0 if self._hashes is None else self._hashes.total_bytes
        return self._payload_bytes + hashed

    def run(self, *, jobs: int, advance: Advance) -> Verification:
        """Check every word of every object, and the known hashes.

        Args:
            jobs: Number of worker threads; each needs a few megabytes.
            advance: Counts bytes; see `total_bytes`.
        """
        found = run_tasks(list(self._tasks()), jobs=jobs, advance=advance)
        problems = chain(
            self._structure.problems,
            () if self._report_problem is None else (self._report_problem,),
            () if self._hashes is None else self._hashes.directory_problems(),
            divisor_problems(self._artifact, self._readable),
            *found,
        )
        return Verification(tuple(problems), tuple(self._notes()), self._checked())

    @property
    def _payload_bytes(self) -> int:
        return sum(record.num_bytes for record in self._readable.values())

    def _open_report(self) -> None:
        path = report_path(self._artifact.path)
        try:
            report = read_report(self._artifact.path)
        except (ArtifactError, OSError) as error:
            self._report_problem = problem_of(error, file=path.name)
            return
        if report is None:
            return
        found = self._artifact.artifact_id.hex()
        if report.artifact_id not in (None, found):
            message = f"is the report of artifact {report.artifact_id}, this one is {found}"
            self._report_problem = Problem("hash", message, file=path.name)
            return
        self._hashes = KnownHashes(self._artifact, report, self._readable)

    def _tasks(self) -> Iterator[CheckTask]:
        for record in self._readable.values():
            yield from words_tasks(self._artifact, record)
            if self._hashes is not None:
                # Right after the words, while the operating system still has the bytes.
                yield from self._hashes.object_tasks(record)
        if self._hashes is not None:
            yield from self._hashes.file_tasks()

    def _notes(self) -> Iterator[str]:
        yield from self._structure.notes
        name = report_path(self._artifact.path).name
        if self._hashes is None and self._report_problem is None:
            yield f"no hashes are known: there is no {name}"
        elif self._hashes is not None and not (self._hashes.objects or self._hashes.files):
            yield f"no hashes are known: {name} holds none"

    def _checked(self) -> Checked:
        hashes = self._hashes
        return Checked(
            objects=len(self._readable),
            skipped_objects=len(self._artifact.directory.objects) - len(self._readable),
            payload_bytes=self._payload_bytes,
            report=None if hashes is None else hashes.report.path.name,
            object_hashes=0 if hashes is None else len(hashes.objects),
            file_hashes=0 if hashes is None else len(hashes.files),
            directory_hash=hashes is not None and hashes.report.directory is not None,
        )
