"""Whether files hold the bytes that were written to them.

Other kinds of verification compare what is stored with the source, which has to be read and
understood once more. This one keeps a hash of every piece while it is written, and hashes the pieces
again when they are read back.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock

import numpy as np

from ninfer_format import Artifact, ArtifactPlan, ArtifactWriter
from ninfer_format.container.framing import ENTRY_MAGIC, pack_header
from ninfer_format.container.writer import Data
from ninfer_format.workers import Advance
from ninfer_quant.errors import VerificationError


@dataclass(frozen=True, slots=True)
class _Piece:
    offset: int
    num_bytes: int
    digest: bytes


class HashingWriter(ArtifactWriter):
    """An `ArtifactWriter` that remembers a SHA-256 of every piece of every object.

    Args:
        path: See `ArtifactWriter`, as the others.
        plan: See there.
        artifact_id: See there.
    """

    def __init__(self, path: Path, plan: ArtifactPlan, artifact_id: bytes | None = None) -> None:
        super().__init__(path, plan, artifact_id)
        self._pieces: defaultdict[str, list[_Piece]] = defaultdict(list)
        self._pieces_lock = Lock()

    def write(self, object_id: str, offset: int, data: Data) -> None:
        """Write bytes of one object; see `ArtifactWriter.write`."""
        super().write(object_id, offset, data)
        view = data.data if isinstance(data, np.ndarray) else memoryview(data)
        piece = _Piece(offset, view.nbytes, hashlib.sha256(view).digest())
        with self._pieces_lock:
            self._pieces[object_id].append(piece)

    def verify_tasks(self, artifact: Artifact) -> list[Callable[[Advance], None]]:
        """Tasks that read everything back: one for the directory, and one for each object.

        Args:
            artifact: What was written, opened.

        The tasks raise `VerificationError` where bytes differ.
        """
        json_bytes = self.plan.json_bytes
        head = pack_header(ENTRY_MAGIC, len(json_bytes), self.artifact_id) + json_bytes
        return [
            partial(_verify_head, artifact.path, head),
            *(
                partial(_verify, artifact, object_id, pieces)
                for object_id, pieces in self._pieces.items()
            ),
        ]


def _verify_head(path: Path, written: bytes, advance: Advance) -> None:
    """Compare the header and the directory of the entry file."""
    with path.open("rb") as file:
        found = file.read(len(written))
    if found != written:
        raise VerificationError("the directory is not the one that was written")
    advance(len(written), "directory")


def _verify(artifact: Artifact, object_id: str, pieces: list[_Piece], advance: Advance) -> None:
    begin = artifact.record(object_id).offset
    for piece in pieces:
        found = np.empty(piece.num_bytes, np.uint8)
        artifact.read_into(begin + piece.offset, found)
        if hashlib.sha256(found.data).digest() != piece.digest:
            raise VerificationError(
                f"object {object_id}: the {piece.num_bytes} bytes from {piece.offset} on are not those "
                "that were written"
            )
        advance(piece.num_bytes, object_id)
