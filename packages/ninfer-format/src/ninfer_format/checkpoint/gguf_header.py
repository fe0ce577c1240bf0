"""The header of a GGUF file, read without trusting a number in it.

The `gguf` package has a reader of its own, which believes every count it finds: a damaged file
makes it run for ever or fill the memory. Here a count is compared with the bytes that are left
before anything is made of it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from ninfer_format.checkpoint.tensor_info import TensorInfo
from ninfer_format.errors import CheckpointError
from ninfer_format.layouts import align_up

MAGIC = b"GGUF"
MAX_HEADER_BYTES = 100_000_000
"""Longest header that is read: a large vocabulary takes about 20 MB."""
MAX_RANK = 4
"""Most axes of a tensor in ggml."""
_VERSIONS = (2, 3)
_MAX_NESTING = 8
"""Deepest nesting of arrays in the metadata; files have one level."""
_DEFAULT_ALIGNMENT = 32
_SMALLEST_PAIR_BYTES = 13
"""A key, a type and a value of one byte."""
_SMALLEST_TENSOR_BYTES = 24
"""A name, no axes, a type and an offset."""

_SCALARS: dict[int, np.dtype[Any]] = {
    GGUFValueType.UINT8: np.dtype("<u1"),
    GGUFValueType.INT8: np.dtype("<i1"),
    GGUFValueType.UINT16: np.dtype("<u2"),
    GGUFValueType.INT16: np.dtype("<i2"),
    GGUFValueType.UINT32: np.dtype("<u4"),
    GGUFValueType.INT32: np.dtype("<i4"),
    GGUFValueType.UINT64: np.dtype("<u8"),
    GGUFValueType.INT64: np.dtype("<i8"),
    GGUFValueType.FLOAT32: np.dtype("<f4"),
    GGUFValueType.FLOAT64: np.dtype("<f8"),
    GGUFValueType.BOOL: np.dtype("?"),
}


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the tensors' bytes.

    Attributes:
        version: Version of the file format.
        metadata: Keys and values; an array of numbers is a NumPy array, one of strings a list.
        tensors: All tensors, in the order of the file.
    """

    version: int
    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]


def read_header(path: Path) -> Header:
    """Read and check the header of a GGUF file.

    Raises:
        CheckpointError: Not a GGUF file, a version or byte order that is not supported, or a
            header that contradicts itself or the file's length.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        file_bytes = file.seek(0, 2)
        file.seek(0)
        cursor = _Cursor(file, file_bytes, path)
        version = _read_version(cursor)
        tensor_count, pair_count = cursor.unpack("<QQ")
        metadata = _read_metadata(cursor, pair_count)
        cursor.check_count(tensor_count, _SMALLEST_TENSOR_BYTES, "tensors")
        entries = [_read_entry(cursor) for _ in range(tensor_count)]
        data_start = align_up(cursor.position, _alignment(metadata, path))
    tensors = tuple(_tensor(entry, data_start, metadata, file_bytes, path) for entry in entries)
    _check_names(tensors, path)
    _check_overlap(tensors, path)
    return Header(version, metadata, tensors)


class _Cursor:
    """Reads a header from front to back, never further than the file and the limit reach."""

    def __init__(self, file: BinaryIO, file_bytes: int, path: Path) -> None:
        self._file = file
        self._end = min(file_bytes, MAX_HEADER_BYTES)
        self.position = 0
        self.path = path

    def fail(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{problem} at byte {self.position}", path=self.path)

    def take(self, num_bytes: int) -> bytes:
        if num_bytes > self._end - self.position:
            raise self.fail(f"header needs {num_bytes} bytes, {self._end - self.position} are left")
        data = self._file.read(num_bytes)
        if len(data) < num_bytes:
            raise self.fail("file became shorter while it was read")
        self.position += num_bytes
        return data

    def unpack(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def number(self, layout: str) -> int:
        (value,) = self.unpack(layout)
        return int(value)

    def string(self, errors: str = "strict") -> str:
        data = self.take(self.number("<Q"))
        try:
            return data.decode("utf-8", errors)
        except UnicodeDecodeError:
            raise self.fail(f"name {data[:64]!r} is not UTF-8") from None

    def check_count(self, count: int, smallest_bytes: int, what: str) -> None:
        """Refuse a number of things that the rest of the header cannot hold."""
        if count * smallest_bytes > self._end - self.position:
            raise self.fail(f"header has no room for {count} {what}")


def _read_version(cursor: _Cursor) -> int:
    magic = cursor.take(4)
    if magic != MAGIC:
        raise CheckpointError(f"not a GGUF file: begins with {magic.hex(' ')}", path=cursor.path)
    version = cursor.number("<I")
    if version in _VERSIONS:
        return version
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in _VERSIONS:
        raise CheckpointError(
            "big-endian GGUF files are not supported",
            path=cursor.path,
            hint="convert the file to little-endian with gguf-convert-endian",
        )
    raise CheckpointError(
        f"GGUF version {version} is not supported (expected 2 or 3)", path=cursor.path
    )


# --- metadata --------------------------------------------------------------------------------


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    cursor.check_count(count, _SMALLEST_PAIR_BYTES, "keys")
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string()
        if key in metadata:
            raise cursor.fail(f"key {key!r} appears twice, the second time")
        metadata[key] = _read_value(cursor, cursor.number("<I"), _MAX_NESTING)
    return metadata


def _read_value(cursor: _Cursor, type_: int, nesting: int) -> Any:
    if type_ == GGUFValueType.STRING:
        # Tokens may be any bytes; what is not UTF-8 shows as an escape.
        return cursor.string("backslashreplace")
    if type_ in _SCALARS:
        return _read_numbers(cursor, type_, 1)[0].item()
    if type_ != GGUFValueType.ARRAY:
        raise cursor.fail(f"unknown type {type_} of a value")
    if not nesting:
        raise cursor.fail(f"arrays are nested deeper than {_MAX_NESTING} levels")
    element_type, count = cursor.unpack("<IQ")
    if element_type in _SCALARS:
        return _read_numbers(cursor, element_type, count)
    cursor.check_count(count, 8, "elements of an array")
    return [_read_value(cursor, element_type, nesting - 1) for _ in range(count)]


def _read_numbers(cursor: _Cursor, type_: int, count: int) -> np.ndarray:
    dtype = _SCALARS[type_]
    return np.frombuffer(cursor.take(count * dtype.itemsize), dtype)


def _alignment(metadata: dict[str, Any], path: Path) -> int:
    value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(value) is not int or value < 1 or value & (value - 1) or value >= 2**32:
        raise CheckpointError(
            f"general.alignment is {value!r} (expected a power of two)", path=path
        )
    return value


# --- tensors ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    axes: tuple[int, ...]
    """Innermost first, as ggml has them."""
    type: int
    offset: int


def _read_entry(cursor: _Cursor) -> _Entry:
    name = cursor.string()
    rank = cursor.number("<I")
    if rank > MAX_RANK:
        raise cursor.fail(f"tensor {name!r} has {rank} axes (expected at most {MAX_RANK})")
    axes = cursor.unpack(f"<{rank}Q")
    type_, offset = cursor.unpack("<IQ")
    return _Entry(name, axes, type_, offset)


def _tensor(
    entry: _Entry, data_start: int, metadata: dict[str, Any], file_bytes: int, path: Path
) -> TensorInfo:
    def fail(problem: str) -> CheckpointError:
        return CheckpointError(f"tensor {entry.name!r} {problem}", path=path, tensors=(entry.name,))

    try:
        type_ = GGMLQuantizationType(entry.type)
    except ValueError:
        raise fail(f"has the unknown type {entry.type}") from None
    block_elements, block_bytes = GGML_QUANT_SIZES[type_]
    columns = entry.axes[0] if entry.axes else 1
    if columns % block_elements:
        raise fail(
            f"of type {type_.name} has rows of {columns} elements "
            f"(expected a multiple of {block_elements})"
        )
    num_bytes = prod(entry.axes) // block_elements * block_bytes
    if entry.offset % _alignment(metadata, path):
        raise fail(f"begins at byte {entry.offset} of the data, which is not aligned")
    offset = data_start + entry.offset
    if num_bytes and offset + num_bytes > file_bytes:
        raise fail(
            f"is cut off: expected a file of at least {offset + num_bytes} bytes, "
            f"found {file_bytes}"
        )
    return TensorInfo(entry.name, type_.name, entry.axes[::-1], num_bytes, path, offset)


def _check_names(tensors: tuple[TensorInfo, ...], path: Path) -> None:
    names: set[str] = set()
    for tensor in tensors:
        if tensor.name in names:
            raise CheckpointError(
                f"two tensors are called {tensor.name!r}", path=path, tensors=(tensor.name,)
            )
        names.add(tensor.name)


def _check_overlap(tensors: tuple[TensorInfo, ...], path: Path) -> None:
    stored = sorted((tensor for tensor in tensors if tensor.num_bytes), key=lambda t: t.offset)
    for previous, tensor in pairwise(stored):
        if tensor.offset < previous.offset + previous.num_bytes:
            raise CheckpointError(
                f"tensors {previous.name!r} and {tensor.name!r} overlap",
                path=path,
                tensors=(previous.name, tensor.name),
            )
