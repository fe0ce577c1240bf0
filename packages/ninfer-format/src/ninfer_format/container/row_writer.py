"""Encoding a tensor block by block into an artifact (container specification, section 7.4)."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs import codec_for, codec_of
from ninfer_format.codecs.base import Codec
from ninfer_format.codecs.geometry import ByteArray, Piece
from ninfer_format.container.schema import ResourceRecord
from ninfer_format.container.writer import ArtifactWriter
from ninfer_format.dtypes import DirectFormat
from ninfer_format.errors import ArtifactError


class RowWriter:
    """Writes one tensor in blocks of rows, in any order and from several threads.

    The gaps between planes are filled with the first block. What several blocks share, such as the
    divisor of a matrix of a stack, is written once and must be the same in all of them.

    Args:
        writer: The open writer.
        object_id: The tensor.

    Raises:
        ArtifactError: `writer`: no tensor of the plan.
    """

    def __init__(self, writer: ArtifactWriter, object_id: str) -> None:
        record = writer.record(object_id)
        if isinstance(record, ResourceRecord):
            raise ArtifactError("writer", "a resource has no rows", object_id=object_id)
        self._writer = writer
        self._record = record
        self._codec: Codec[Any] = codec_of(record)
        self._lock = Lock()
        self._has_padding = False
        self._shared: dict[int, ByteArray] = {}

    def write_rows(self, words: Any, first_row: int) -> int:
        """Encode and write consecutive rows.

        Args:
            words: Words of the rows, as the codec defines them for a tensor of only these rows.
            first_row: Index of the first of them.

        Returns:
            Number of bytes written; those that blocks share count once.

        Raises:
            ArtifactError: `codec`: an illegal word, or rows that are not whole blocks of the
                layout inside one matrix of a stack; `writer`: a row was written before, or shared
                words differ from those of an earlier block.
            OSError: The disk is full or fails.
        """
        return self._write(self._codec.encode_rows(words, first_row))

    def write_elements(self, words: NDArray[Any], first_element: int) -> int:
        """Write words of a direct format from flat element `first_element` on.

        Returns:
            Number of bytes written.

        Raises:
            ArtifactError: `codec`: not a direct format, words of another type, or elements
                outside the tensor; `writer`: an element was written before.
            OSError: The disk is full or fails.
        """
        if not isinstance(self._codec.numeric, DirectFormat):
            raise ArtifactError(
                "codec",
                f"{self._codec.format} is written by rows, not by elements",
                object_id=self._record.id,
            )
        # Layouts of direct formats are one run of words, whatever the shape.
        flat = codec_for(self._codec.format, self._codec.layout, (self._record.elements,))
        return self._write(flat.encode_rows(words.reshape(-1), first_element))

    def _write(self, pieces: Iterable[Piece]) -> int:
        with self._lock:
            own = [piece for piece in pieces if not piece.shared or self._is_new(piece)]
            if not self._has_padding:
                self._has_padding = True
                gaps = self._codec.padding
                own += [Piece(offset, np.zeros(length, np.uint8)) for offset, length in gaps]
        for piece in own:
            self._writer.write(self._record.id, piece.offset, piece.data)
        return sum(piece.data.size for piece in own)

    def _is_new(self, piece: Piece) -> bool:
        """Whether no block had this shared piece before; if one had, it had the same bytes."""
        known = self._shared.get(piece.offset)
        if known is None:
            self._shared[piece.offset] = piece.data.copy()
            return True
        if not np.array_equal(known, piece.data):
            raise ArtifactError(
                "writer",
                "rows of one matrix differ in what they share",
                object_id=self._record.id,
                offset=piece.offset,
                expected=known[:16].tobytes().hex(),
                found=piece.data[:16].tobytes().hex(),
            )
        return False
