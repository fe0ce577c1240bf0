"""Comparing an artifact with the hashes that its conversion report holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from ninfer_format.container.artifact import Artifact
from ninfer_format.container.schema import ObjectRecord
from ninfer_format.errors import ArtifactError
from ninfer_format.verification.conversion_report import ConversionReport
from ninfer_format.verification.hashes import hash_directory, hash_file, hash_object
from ninfer_format.verification.problems import Problem, problem_of
from ninfer_format.verification.words import CheckTask
from ninfer_format.workers import Advance


class KnownHashes:
    """The hashes of a report that can be compared.

    A report that knows the objects is compared object by object, because that names what has
    changed and can be shared out among many workers; one that does not, file by file.

    Args:
        artifact: The artifact.
        report: Its report.
        readable: The objects whose bytes can be read, by id.

    Attributes:
        report: As given.
        objects: The objects that are compared, by id.
        files: The files that are compared, with their hashes.
    """

    def __init__(
        self,
        artifact: Artifact,
        report: ConversionReport,
        readable: Mapping[str, ObjectRecord],
    ) -> None:
        self.report = report
        self._artifact = artifact
        self.objects = {key: record for key, record in readable.items() if key in report.objects}
        named = zip(artifact.file_paths, report.files, strict=False)
        whole_files = () if report.objects else named
        self.files = tuple((path, digest) for path, digest in whole_files if path.is_file())

    @property
    def total_bytes(self) -> int:
        """What the tasks will count."""
        objects = sum(record.num_bytes for record in self.objects.values())
        return objects + sum(path.stat().st_size for path, _ in self.files)

    def object_tasks(self, record: ObjectRecord) -> Iterator[CheckTask]:
        """A task that compares an object, if its hash is known."""
        if record.id in self.objects:
            yield partial(self._compare_object, record)

    def file_tasks(self) -> Iterator[CheckTask]:
        """Tasks that compare whole files."""
        for path, digest in self.files:
            yield partial(self._compare_file, path, digest)

    def directory_problems(self) -> Iterator[Problem]:
        """Compare the directory, and the objects that it lists with those of the report."""
        known = self.report.directory
        if known is not None and known != hash_directory(self._artifact):
            yield Problem("hash", f"directory's {self._changed}", file=self._artifact.path.name)
        if self.report.objects:
            listed = {record.id for record in self._artifact.directory.objects}
            for object_id in sorted(listed - self.report.objects.keys()):
                yield Problem("hash", f"object is not in {self.report.path.name}", object_id)
            for object_id in sorted(self.report.objects.keys() - listed):
                yield Problem("hash", f"object of {self.report.path.name} is missing", object_id)

    def _compare_object(self, record: ObjectRecord, advance: Advance) -> list[Problem]:
        try:
            digest = hash_object(self._artifact, record, advance)
        except (ArtifactError, OSError) as error:
            return [problem_of(error, object_id=record.id, offset=record.offset)]
        if digest == self.report.objects[record.id]:
            return []
        return [Problem("hash", f"encoded {self._changed}", record.id, record.offset)]

    def _compare_file(self, path: Path, expected: str, advance: Advance) -> list[Problem]:
        try:
            digest = hash_file(path, advance)
        except OSError as error:
            return [problem_of(error, file=path.name)]
        return [] if digest == expected else [Problem("hash", self._changed, file=path.name)]

    @property
    def _changed(self) -> str:
        return f"bytes are not those of the conversion ({self.report.path.name})"
