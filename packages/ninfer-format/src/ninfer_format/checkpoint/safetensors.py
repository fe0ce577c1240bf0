"""Safetensors checkpoints: strict headers, bounded reads of element ranges.

A file is an 8-byte little-endian header length, a JSON header and a data section. The tensors of a
file must cover its data section exactly once; anything else means that the file is damaged or was
made to mislead.
"""

from __future__ import annotations

import json
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ninfer_format.checkpoint.tensor_info import TensorInfo
from ninfer_format.checkpoint.tensor_table import TensorTable
from ninfer_format.container.framing import SPARE_BYTES, U64_MAX
from ninfer_format.container.json_text import parse_json
from ninfer_format.container.json_values import is_sibling_name
from ninfer_format.errors import ArtifactError, CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
MAX_HEADER_BYTES = 100_000_000
MAX_RANK = 64
"""Most axes of an array in NumPy."""
_LENGTH_BYTES = 8

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype("<u1"),
    "I8": np.dtype("<i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
"""NumPy types of the names in a header."""


class SafetensorsCheckpoint(TensorTable):
    """The tensors of a checkpoint by name; nothing but headers is read until a tensor is.

    Args:
        path: A ``.safetensors`` file, an index file, or a folder. A folder is read through its
            index, else its ``model.safetensors``, else all its ``.safetensors`` files; a folder
            without any has a configuration only.

    Attributes:
        path: As given.
        config: The ``config.json`` beside the tensors; empty if there is none.
        names: All tensor names, sorted.
        metadata: The ``__metadata__`` of all headers together.

    Raises:
        CheckpointError: A file is missing or damaged, or two files disagree.
        OSError: A file cannot be read.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        tensors, self.metadata = _read_all(Path(path))
        super().__init__(Path(path), tensors)
        folder = self.path if self.path.is_dir() else self.path.parent
        config = folder / "config.json"
        self.config: dict[str, Any] = _read_json(config) if config.exists() else {}

    def read(self, name: str, begin: int = 0, end: int | None = None) -> NDArray[Any]:
        """Read elements [begin, end) of a tensor, flat in C order.

        Args:
            name: The tensor.
            begin: First element.
            end: Element after the last; None for all.

        Returns:
            A new array of the stored type; ml_dtypes.bfloat16 for ``BF16``.

        Raises:
            CheckpointError: There is no such tensor, the range is outside it, or the file ends
                early.
            OSError: The file cannot be read.
        """
        tensor = self.info(name)
        end = self._end(tensor, begin, end)
        dtype = DTYPES[tensor.dtype]
        values = np.empty(end - begin, dtype=dtype)
        tensor.read_into(begin * dtype.itemsize, values.view(np.uint8))
        return values


# --- finding files ---------------------------------------------------------------------------


_Content = tuple[dict[str, TensorInfo], dict[str, Any]]
"""Tensors by name, and metadata."""


def _read_all(path: Path) -> _Content:
    if not path.is_dir():
        if path.suffix == ".json":
            return _read_indexed(path)
        return _read_shards([path])
    index = path / INDEX_NAME
    if index.exists():
        return _read_indexed(index)
    single = path / SINGLE_NAME
    return _read_shards([single] if single.exists() else sorted(path.glob("*.safetensors")))


def _read_shards(shards: list[Path]) -> _Content:
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, Any] = {}
    for shard in shards:
        listed, said = _read_header(shard)
        metadata |= said
        for tensor in listed:
            if tensor.name in tensors:
                raise CheckpointError(
                    f"tensor {tensor.name!r} is in {tensors[tensor.name].file.name} as well",
                    path=shard,
                    tensors=(tensor.name,),
                )
            tensors[tensor.name] = tensor
    return tensors, metadata


def _read_indexed(index: Path) -> _Content:
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(map(is_sibling_name, weight_map.values())):
        raise CheckpointError(
            "index has no weight_map from tensor names to names of files beside it", path=index
        )
    shards = [index.parent / name for name in sorted(set(weight_map.values()))]
    absent = {shard.name for shard in shards if not shard.exists()}
    if absent:
        names = tuple(sorted(name for name, shard in weight_map.items() if shard in absent))
        raise CheckpointError(
            f"shards listed in the index are absent: {', '.join(sorted(absent))}",
            path=index,
            tensors=names,
            hint="download the missing files",
        )
    tensors, metadata = _read_shards(shards)
    misplaced = tuple(
        sorted(
            name
            for name in tensors.keys() | weight_map.keys()
            if name not in tensors or tensors[name].file.name != weight_map.get(name)
        )
    )
    if misplaced:
        raise CheckpointError(
            f"index and shards disagree about {len(misplaced)} tensors, "
            f"among them {misplaced[0]!r}",
            path=index,
            tensors=misplaced,
        )
    return tensors, metadata


def _read_json(path: Path) -> dict[str, Any]:
    return _parse_object(path.read_bytes(), path)


def _parse_object(text: bytes, path: Path, max_bytes: int | None = None) -> dict[str, Any]:
    try:
        value = parse_json(text, what="text", max_bytes=max_bytes)
    except ArtifactError as error:
        raise CheckpointError(str(error), path=path) from None
    if not isinstance(value, dict):
        raise CheckpointError("file does not hold a JSON object", path=path)
    return value


# --- one header ------------------------------------------------------------------------------


def _read_header(path: Path) -> tuple[list[TensorInfo], dict[str, Any]]:
    with path.open("rb") as file:
        file_bytes = file.seek(0, 2)
        file.seek(0)
        header, data_start = _read_header_json(file, file_bytes, path)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise CheckpointError("__metadata__ is not an object", path=path)
    tensors = [_tensor(name, entry, data_start, path) for name, entry in header.items()]
    _check_cover(tensors, data_start, file_bytes, path)
    return tensors, metadata


def _read_header_json(file: BinaryIO, file_bytes: int, path: Path) -> tuple[dict[str, Any], int]:
    prefix = file.read(_LENGTH_BYTES)
    length = int.from_bytes(prefix, "little")
    room = min(file_bytes - _LENGTH_BYTES, MAX_HEADER_BYTES)
    if len(prefix) < _LENGTH_BYTES or not 2 <= length <= room:
        raise CheckpointError(
            f"not a Safetensors file: header length {length} of a file of {file_bytes} bytes, "
            f"which begins with {prefix.hex(' ') or 'nothing'}",
            path=path,
        )
    header = _parse_object(file.read(length), path, file_bytes + SPARE_BYTES)
    return header, _LENGTH_BYTES + length


def _tensor(name: str, entry: Any, data_start: int, path: Path) -> TensorInfo:
    def fail(problem: str) -> CheckpointError:
        return CheckpointError(f"tensor {name!r} {problem}", path=path, tensors=(name,))

    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise fail("is not described by exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise fail(f"has unknown type {json.dumps(dtype)} (expected one of {', '.join(DTYPES)})")
    if not _are_counts(shape) or len(shape) > MAX_RANK:
        raise fail(f"has a shape that is not a list of at most {MAX_RANK} counts")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise fail("has data_offsets that are not [begin, end]")
    num_bytes = prod(shape) * DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != num_bytes:
        raise fail(
            f"of type {dtype} and shape {shape} has {offsets[1] - offsets[0]} bytes "
            f"(expected {num_bytes})"
        )
    return TensorInfo(name, dtype, tuple(shape), num_bytes, path, data_start + offsets[0])


def _are_counts(value: Any) -> bool:
    # Products of longer numbers could take hours.
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item <= U64_MAX for item in value
    )


def _check_cover(tensors: list[TensorInfo], data_start: int, file_bytes: int, path: Path) -> None:
    """Check that the tensors cover the data section without gap, overlap or rest."""
    end = data_start
    previous = None
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.num_bytes)):
        if tensor.offset < end and previous is not None:
            raise CheckpointError(
                f"tensors {previous.name!r} and {tensor.name!r} overlap",
                path=path,
                tensors=(previous.name, tensor.name),
            )
        if tensor.offset > end:
            raise CheckpointError(
                f"{tensor.offset - end} bytes before tensor {tensor.name!r} belong to no tensor",
                path=path,
                tensors=(tensor.name,),
            )
        end = tensor.offset + tensor.num_bytes
        if end > file_bytes:
            raise CheckpointError(
                f"file ends inside tensor {tensor.name!r} "
                f"(expected at least {end} bytes, found {file_bytes})",
                path=path,
                tensors=(tensor.name,),
                hint="the file is incomplete; download it again",
            )
        previous = tensor
    if end != file_bytes:
        raise CheckpointError(f"{file_bytes - end} bytes after the last tensor", path=path)
