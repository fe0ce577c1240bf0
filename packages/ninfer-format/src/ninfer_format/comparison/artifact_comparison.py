"""Comparing two artifacts: their directories, and the bytes of the objects they both have."""

from __future__ import annotations

from functools import partial

import numpy as np

from ninfer_format.comparison.differences import Difference
from ninfer_format.comparison.directories import compare_directories, content
from ninfer_format.container.artifact import Artifact
from ninfer_format.container.schema import ObjectRecord
from ninfer_format.workers import Advance, run_tasks

_CHUNK_BYTES = 1 << 20


class ArtifactComparison:
    """Two open artifacts; bytes are compared where both have an object of the same description.

    Args:
        first: The artifact to start from.
        second: The artifact to compare it with.
    """

    def __init__(self, first: Artifact, second: Artifact) -> None:
        self._first = first
        self._second = second
        others = {record.id: record for record in second.directory.objects}
        self._pairs = [
            (record, others[record.id])
            for record in first.directory.objects
            if record.id in others and content(record) == content(others[record.id])
        ]

    @property
    def total_bytes(self) -> int:
        """What `run` will count: the bytes of the objects that are compared."""
        return sum(record.num_bytes for record, _ in self._pairs)

    def run(self, *, jobs: int, advance: Advance) -> tuple[Difference, ...]:
        """Find all differences.

        Args:
            jobs: Number of worker threads.
            advance: Counts bytes compared.

        Raises:
            ArtifactError: `part` or `framing`: a file is not the right one.
            OSError: A file cannot be read.
        """
        tasks = [partial(self._compare_bytes, *pair) for pair in self._pairs]
        found = run_tasks(tasks, jobs=jobs, advance=advance)
        changed = [difference for difference in found if difference is not None]
        said = compare_directories(self._first.directory, self._second.directory)
        return (*said, *changed)

    def _compare_bytes(
        self, record: ObjectRecord, other: ObjectRecord, advance: Advance
    ) -> Difference | None:
        count, first = 0, None
        for begin in range(0, record.num_bytes, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, record.num_bytes - begin)
            mine, theirs = np.empty(length, np.uint8), np.empty(length, np.uint8)
            self._first.read_into(record.offset + begin, mine)
            self._second.read_into(other.offset + begin, theirs)
            different = mine != theirs
            if different.any():
                count += int(np.count_nonzero(different))
                first = begin + int(np.argmax(different)) if first is None else first
            advance(length, record.id)
        if first is None:
            return None
        detail = f"{count} of {record.num_bytes} bytes differ, the first at {first} of the object"
        return Difference("objects", "changed", record.id, detail)
