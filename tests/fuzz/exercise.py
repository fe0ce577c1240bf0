"""Everything that a reader can be asked about a file."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_format import Artifact, ArtifactError, TensorRecord, check_encoding, open_artifact

MAX_ELEMENTS = 2**22
"""Elements that are decoded of one file, so that each takes a bounded time.

A directory may bind any number of parameters to the same elements.
"""


def exercise(entry: Path) -> None:
    """Open an artifact and read it in every way.

    Artifact errors and errors of the operating system are what a bad file may give; anything else
    is passed on.
    """
    opened = attempt(open_artifact, entry)
    if opened is None:
        return
    with opened as artifact:
        _read_ranges(artifact)
        for record in artifact.directory.objects:
            attempt(check_encoding, record)
            attempt(artifact.read_object, record.id)
            if isinstance(record, TensorRecord):
                _read_tensor(artifact, record)
        for name, component in artifact.directory.components.items():
            for role in component.resources:
                attempt(artifact.resource, name, role)
        left = MAX_ELEMENTS
        for name in artifact.directory.bindings:
            left -= artifact.parameter_elements(name)
            if left > 0:
                _read_parameter(artifact, name)


def attempt(action: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; None if it fails as it may."""
    try:
        return action(*arguments)
    except ArtifactError as error:
        check_message(error)
    except OSError:
        pass
    return None


def check_message(error: ArtifactError) -> None:
    """An error can be printed, and says which of the closed list it is."""
    str(error).encode("utf-8", "backslashreplace")
    if error.code != f"artifact_{error.category}":
        raise AssertionError(error.code)


def _read_ranges(artifact: Artifact) -> None:
    size = artifact.payload_bytes
    attempt(artifact.read_range, size, 0)
    attempt(artifact.read_range, 0, size)
    attempt(artifact.read_range, size - 1, 2)
    attempt(artifact.read_range, size // 2, 3)
    attempt(artifact.read_into, size // 3, bytearray(100))
    if artifact.file_bytes <= size:
        raise AssertionError(artifact.file_bytes)


def _read_tensor(artifact: Artifact, record: TensorRecord) -> None:
    codec = attempt(artifact.codec, record.id)
    attempt(artifact.words, record.id)
    attempt(artifact.verify_object, record.id)
    values = attempt(artifact.decode_object, record.id)
    if values is not None and values.shape != record.shape:
        raise AssertionError(values.shape)
    if codec is not None and codec.row_block is not None:
        attempt(artifact.row_slice_payload, record.id, 0, codec.row_block)
        attempt(artifact.row_slice_payload, record.id, codec.rows - codec.row_block, codec.rows)


def _read_parameter(artifact: Artifact, name: str) -> None:
    elements = artifact.parameter_elements(name)
    whole = attempt(artifact.decode_parameter, name)
    if whole is not None and whole.size != elements:
        raise AssertionError(whole.size)
    half = elements // 2
    for shape in [None, (elements, 1), (2, half), (half, 2)]:
        if shape is not None and prod(shape) != elements:
            continue
        rows = attempt(artifact.read_rows, name, (0, 1), shape)
        attempt(artifact.read_rows, name, np.array([1, 0, 1]), shape)
        columns = attempt(artifact.read_columns, name, 0, 1, shape)
        if whole is not None and shape is not None and rows is not None:
            _check_same(rows, whole.reshape(shape)[:1])
        if whole is not None and shape is not None and columns is not None:
            _check_same(columns, whole.reshape(shape)[:, :1])


def _check_same(found: Any, wanted: Any) -> None:
    if found.tobytes() != wanted.tobytes():
        raise AssertionError("the same elements, read in two ways, differ")
