"""Writing the values or the words of one tensor into a file of NumPy's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from ninfer_format.commandline import Progress, Terminal, new_output
from ninfer_format.container.artifact import Artifact
from ninfer_format.errors import UsageError
from ninfer_format.inspect.array_file import write_npy, write_npz
from ninfer_format.inspect.intervals import Interval, resolve
from ninfer_format.inspect.source import Source
from ninfer_format.inspect.tensor_values import TensorValues, find_values
from ninfer_format.inspect.tensor_words import PiecewiseArray, word_arrays


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """What to write.

    Attributes:
        name: A parameter, an object, or a tensor of a checkpoint.
        out: The file to be.
        words: Write the stored words, not the values.
        rows: Which rows; None for all.
        force: Replace an existing file.
    """

    name: str
    out: Path
    words: bool
    rows: Interval | None
    force: bool


def write_tensor(terminal: Terminal, path: str, source: Source, request: DecodeRequest) -> None:
    """Write a tensor and report what was written.

    The file appears when it is complete. Memory does not depend on the size of the tensor.

    Raises:
        ArtifactError: There is no such tensor, or its words are illegal.
        CheckpointError: There is no such tensor, or its type cannot be read.
        UsageError: The range is outside the tensor, or the output exists or has the wrong ending.
    """
    values = find_values(source, request.name)
    if not request.words:
        arrays = [_value_array(values, request.rows)]
    elif isinstance(source, Artifact):
        arrays = word_arrays(source, values, request.rows)
    else:
        raise UsageError("--words: only artifacts have words", hint="leave out --words")
    _check_ending(request.out, ".npy" if len(arrays) == 1 else ".npz")
    total = sum(prod(array.shape) * array.dtype.itemsize for array in arrays)
    with (
        new_output(request.out, force=request.force) as file,
        Progress(terminal, "decoding", total=total, unit="bytes") as progress,
    ):

        def count(num_bytes: int) -> None:
            progress.advance(num_bytes, request.name)

        if len(arrays) == 1:
            write_npy(file, arrays[0], count)
        else:
            write_npz(file, arrays, count)
    _report(terminal, path, request, values, arrays)


def _value_array(values: TensorValues, rows: Interval | None) -> PiecewiseArray:
    if rows is not None and not values.shape:
        raise UsageError(f"--rows: {values.name!r} is a scalar")
    height, width = (values.shape[0], prod(values.shape[1:])) if values.shape else (1, 1)
    begin, end = resolve(rows, height, "--rows")
    shape = (end - begin, *values.shape[1:]) if values.shape else ()

    def pieces() -> Iterator[NDArray[Any]]:
        return values.pieces(begin * width, end * width)

    # Types that are not NumPy's own would be read back as bytes without a meaning.
    dtype = values.dtype if values.dtype.kind in "biuf" else np.dtype(np.float32)
    return PiecewiseArray("values", dtype.newbyteorder("<"), shape, pieces)


def _check_ending(out: Path, ending: str) -> None:
    if out.suffix != ending:
        holds = "one array" if ending == ".npy" else "several arrays"
        raise UsageError(f"output holds {holds}, so its name must end in {ending}", path=out)


def _report(
    terminal: Terminal,
    path: str,
    request: DecodeRequest,
    values: TensorValues,
    arrays: list[PiecewiseArray],
) -> None:
    out = click.format_filename(request.out)
    if terminal.json:
        terminal.print_json(
            {
                "path": path,
                "tensor": {"name": values.name, "kind": values.kind},
                "out": out,
                "out_bytes": request.out.stat().st_size,
                "arrays": [
                    {"name": array.name, "dtype": array.dtype.name, "shape": list(array.shape)}
                    for array in arrays
                ],
            }
        )
        return
    for array in arrays:
        terminal.note(f"{out}: {array.name} {array.dtype.name} {list(array.shape)}")
