"""A new artifact from the payload of another one: changed directory, same bytes.

Everything that edits an artifact without encoding anything comes down to this: keep the payload,
perhaps without its end, put new objects behind it, and write another directory. With nothing
changed it cuts an artifact into files of another length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

from ninfer_format.container.file_set import CHUNK_BYTES, FileSetWriter
from ninfer_format.container.plan import ResourceSpec, TensorSpec, place_specs
from ninfer_format.container.schema import (
    Binding,
    Component,
    Directory,
    FileSegment,
    ObjectRecord,
    Use,
)
from ninfer_format.container.segments import DEFAULT_MAX_FILE_BYTES, plan_files
from ninfer_format.errors import ArtifactError


class PayloadSource(Protocol):
    """Bytes under one range of offsets, such as the payload of an open artifact."""

    @property
    def num_bytes(self) -> int:
        """Number of bytes."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes from `offset` on."""


@dataclass(frozen=True, slots=True)
class Addition:
    """An object that is put behind the payload that was kept.

    Attributes:
        spec: The object. A resource brings its bytes along.
        source: Where the encoded bytes of a tensor are.
        offset: Where in `source` they begin.
    """

    spec: TensorSpec | ResourceSpec
    source: PayloadSource | None = None
    offset: int = 0


def rewrite_artifact(
    out: str | PathLike[str],
    *,
    payload: PayloadSource,
    kept_bytes: int,
    objects: Sequence[ObjectRecord],
    additions: Sequence[Addition] = (),
    components: Mapping[str, Component],
    bindings: Mapping[str, Binding],
    uses: Sequence[Use],
    metadata: Mapping[str, Any],
    provenance: Mapping[str, Any],
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES,
    artifact_id: bytes | None = None,
    advance: Callable[[int], None] | None = None,
) -> Path:
    """Copy a payload under a new directory.

    Payload bytes [0, kept_bytes) are copied as they are, gaps between objects too. Additions
    follow in their order, at the alignment of their layouts and with zeros in between. Nothing is
    seen of the new artifact until it is complete, and an existing file is not replaced.

    Args:
        out: The entry file to be.
        payload: The payload to copy from.
        kept_bytes: How much of it to keep. Behind its end there are zeros.
        objects: The objects in the kept bytes, in payload order. Their formats and layouts need
            not be known.
        additions: New objects.
        components: Component id to component, of the new artifact; so are the following.
        bindings: Parameter name to where its elements are.
        uses: Where parameters meet activations.
        metadata: Free, but for an optional ``name``.
        provenance: Free.
        max_file_bytes: Limit for the length of each file.
        artifact_id: 16 bytes that identify the set of files; random when absent.
        advance: Is told how many bytes have been copied, chunk by chunk.

    Returns:
        The entry file.

    Raises:
        FileExistsError: The entry or a part exists.
        FileLimitError: The limit leaves no room for payload.
        ArtifactError: `writer`: an object does not lie in the kept bytes, or an added tensor has
            no source; otherwise as the reader would report the new directory, or as reading
            `payload` or a source reports it.
        OSError: A file cannot be read, or the disk is full.
    """
    for record in objects:
        if record.end > kept_bytes:
            raise ArtifactError(
                "writer",
                "object does not lie in the bytes that are kept",
                object_id=record.id,
                expected=f"end of at most {kept_bytes}",
                found=record.end,
            )
    added = place_specs([addition.spec for addition in additions], kept_bytes)
    end = added[-1].end if added else kept_bytes
    directory = Directory(
        components=components,
        objects=(*objects, *added),
        bindings=bindings,
        uses=tuple(uses),
        files=(FileSegment(None, end),),
        metadata=metadata,
        provenance=provenance,
    )
    out = Path(out)
    plan = plan_files(directory, out.name, max_file_bytes)
    copier = _Copier(advance or (lambda num_bytes: None))
    with FileSetWriter(out, plan, artifact_id) as files:
        copier.copy(files, payload, 0, 0, min(kept_bytes, payload.num_bytes))
        for addition, record in zip(additions, added, strict=True):
            copier.add(files, addition, record)
        files.publish()
    return out


class _Copier:
    """Copies bytes through one buffer."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._buffer = memoryview(bytearray(CHUNK_BYTES))
        self._advance = advance

    def copy(
        self, files: FileSetWriter, source: PayloadSource, begin: int, target: int, num_bytes: int
    ) -> None:
        """Copy `num_bytes` bytes of `source` from `begin` on to payload offset `target`."""
        for done in range(0, num_bytes, CHUNK_BYTES):
            chunk = self._buffer[: min(CHUNK_BYTES, num_bytes - done)]
            source.read_into(begin + done, chunk)
            files.write(target + done, chunk)
            self._advance(chunk.nbytes)

    def add(self, files: FileSetWriter, addition: Addition, record: ObjectRecord) -> None:
        """Write the bytes of an added object to its place."""
        if isinstance(addition.spec, ResourceSpec):
            files.write(record.offset, memoryview(addition.spec.data))
            self._advance(record.num_bytes)
        elif addition.source is None:
            raise ArtifactError("writer", "added tensor has no source", object_id=record.id)
        else:
            self.copy(files, addition.source, addition.offset, record.offset, record.num_bytes)
