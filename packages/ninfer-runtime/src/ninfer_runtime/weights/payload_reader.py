"""Reading parts of an artifact into a buffer, with several threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ninfer_runtime.weights.stored_rows import Extent

if TYPE_CHECKING:
    from ninfer_format import Artifact

READ_BYTES = 4 * 2**20
"""What one thread reads at a time."""

MOST_READERS = 8
"""Threads that read: each copies some 5 GB/s out of the page cache, PCIe takes some 50."""


class PayloadReader:
    """Reads the payload of an open artifact."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        readers = min(MOST_READERS, len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(readers, thread_name_prefix="weights")

    def fill(self, buffer: NDArray[np.uint8], extents: Sequence[Extent]) -> None:
        """Copy extents of the payload to their places in a buffer.

        Raises:
            ArtifactError: `range`, `part` or `framing`: the payload is not what its directory says.
            OSError: A file cannot be read.
        """
        pieces = [piece for extent in extents for piece in _cut(extent)]
        if len(pieces) == 1:
            self._read(buffer, pieces[0])
            return
        for _ in self._pool.map(lambda piece: self._read(buffer, piece), pieces):
            pass

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _read(self, buffer: NDArray[np.uint8], piece: Extent) -> None:
        place = buffer[piece.target : piece.target + piece.length]
        self._artifact.read_into(piece.source, place)


def _cut(extent: Extent) -> Iterator[Extent]:
    for begin in range(0, extent.length, READ_BYTES):
        length = min(READ_BYTES, extent.length - begin)
        yield Extent(extent.source + begin, extent.target + begin, length)
