"""An existing artifact as a source: values and encoded words by logical parameter name."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_format import (
    Artifact,
    Exl3Words,
    Nvfp4Words,
    Part,
    TensorRecord,
    get_format,
    open_artifact,
)
from ninfer_format.dtypes import DirectFormat
from ninfer_format.errors import CheckpointError
from ninfer_quant.sources.encoded import EncodedSource
from ninfer_quant.sources.logical import LogicalSource
from ninfer_quant.sources.store import ParameterStore
from ninfer_quant.sources.words import MatrixWords, word_rows

ACTIVATION_INPUT_DIVISOR = "activation_input_divisor"


class ArtifactStore(ParameterStore):
    """The parameters of an artifact.

    Args:
        path: Its entry file.

    Attributes:
        artifact: The open artifact.

    Raises:
        ArtifactError: The file is no artifact, or a part of it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.artifact = open_artifact(path)
        directory = self.artifact.directory
        names = tuple(sorted(directory.bindings))
        parts = [path.with_name(file.path) for file in directory.files if file.path is not None]
        super().__init__(path, config={}, stored_names=names, files=(path, *parts))
        self.names = frozenset(names)

    def parameter(self, name: str, shape: tuple[int, ...]) -> LogicalSource:
        """Values and words of a parameter; see `ParameterStore`."""
        if name not in self.names:
            raise CheckpointError(
                f"the artifact has no parameter {name!r}", path=self.path, tensors=(name,)
            )
        elements = self.artifact.parameter_elements(name)
        if elements != prod(shape):
            raise CheckpointError(
                f"parameter {name!r} has {elements} elements, expected {list(shape)}",
                path=self.path,
                tensors=(name,),
            )
        return _StoredParameter(self.artifact, name, shape)


class _StoredParameter(LogicalSource):
    def __init__(self, artifact: Artifact, name: str, shape: tuple[int, ...]) -> None:
        super().__init__(shape, name, origin=artifact.path)
        self._artifact = artifact
        records = [_tensor_record(artifact, part.object) for part in artifact.parts(name)]
        is_integer = any(record.format == "int32" for record in records)
        self._dtype = np.dtype(np.int32 if is_integer else np.float32)
        self._encoded = _encoded(artifact, name, shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @property
    def encoded(self) -> EncodedSource | None:
        return self._encoded

    def _read(self, begin: int, end: int) -> np.ndarray:
        if begin == end:
            return np.empty(0, self._dtype)
        width = prod(self.shape[1:])
        first, last = begin // width, -(-end // width)
        shape = self.shape or (1,)
        rows = self._artifact.read_rows(self.label, (first, last), shape).reshape(-1)
        return rows[begin - first * width : end - first * width]


def _encoded(artifact: Artifact, name: str, shape: tuple[int, ...]) -> EncodedSource | None:
    """The words of a parameter that is rows of one quantized matrix, and of one of its stack."""
    parts = artifact.parts(name)
    if len(parts) != 1 or len(shape) != 2:
        return None
    record = _tensor_record(artifact, parts[0].object)
    if isinstance(get_format(record.format), DirectFormat) or len(record.shape) != 2:
        return None
    N, K = record.shape
    if shape[1] != K or parts[0].begin % K:
        return None
    first = parts[0].begin // K
    share = N // record.divisors
    if first // share != (first + shape[0] - 1) // share:
        return None
    if first % _cut(record) or shape[0] % _cut(record):
        return None
    return _StoredRows(artifact, name, record, parts[0], (shape[0], K))


def _cut(record: TensorRecord) -> int:
    """Rows that a parameter's edges are multiples of, if its words are to be words of their own."""
    return 16 if record.format == "exl3_mul1" else 1


class _StoredRows(EncodedSource):
    """Rows of one object; they are read with the blocks of the layout that they lie in."""

    def __init__(
        self,
        artifact: Artifact,
        name: str,
        record: TensorRecord,
        part: Part,
        shape: tuple[int, int],
    ) -> None:
        super().__init__(
            record.format,
            shape,
            name,
            bitrate_half_bits=record.bitrate_half_bits,
            row_block=_cut(record),
        )
        self._artifact = artifact
        self._object = record.id
        self._first_row = part.begin // shape[1]
        self._block = artifact.codec(record.id).row_block or 1

    def _read(self, begin: int, end: int) -> MatrixWords:
        first, last = self._first_row + begin, self._first_row + end
        block_first = first // self._block * self._block
        block_last = -(-last // self._block) * self._block
        codec, payload = self._artifact.row_slice_payload(self._object, block_first, block_last)
        words: MatrixWords = codec.decode_words(payload)
        return word_rows(words, first - block_first, last - block_first)

    def weight_divisor(self) -> np.float32 | None:
        words = self._first_words()
        if not isinstance(words, Nvfp4Words):
            return None
        return np.float32(words.divisors.view(np.float32)[0])

    def input_divisor(self) -> np.float32 | None:
        return _smallest_input_divisor(self._artifact, self.label)

    def input_scales(self) -> np.ndarray | None:
        words = self._first_words()
        return words.suh[0] if isinstance(words, Exl3Words) else None

    def _first_words(self) -> MatrixWords:
        return self.read_rows(0, self.row_block)


def _smallest_input_divisor(artifact: Artifact, name: str) -> np.float32 | None:
    found = [
        float(np.asarray(artifact.decode_object(object_id)).reshape(-1)[0])
        for object_id in _divisor_objects(artifact, name)
    ]
    return np.float32(min(found)) if found else None


def _divisor_objects(artifact: Artifact, name: str) -> Iterable[str]:
    for use in artifact.directory.uses:
        binding = use.auxiliaries.get(ACTIVATION_INPUT_DIVISOR)
        if use.parameter == name and binding is not None and binding.object is not None:
            yield binding.object


def _tensor_record(artifact: Artifact, object_id: str) -> TensorRecord:
    record = artifact.record(object_id)
    if not isinstance(record, TensorRecord):
        raise CheckpointError(f"object {object_id!r} is no tensor", path=artifact.path)
    return record
