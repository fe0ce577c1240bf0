"""What ``--tensor`` shows: statistics of the values, and the values of a range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from ninfer_format.commandline import Progress, Terminal, format_bytes
from ninfer_format.commandline.printable import printable
from ninfer_format.errors import UsageError
from ninfer_format.inspect.intervals import Interval, resolve
from ninfer_format.inspect.json_values import json_value
from ninfer_format.inspect.pictures import histogram
from ninfer_format.inspect.source import Source
from ninfer_format.inspect.statistics import Statistics, describe
from ninfer_format.inspect.tensor_values import TensorValues, find_values

MOST_SHOWN_VALUES = 65_536
"""Values that are printed at most; more belong into a file."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Some rows and columns of a tensor; a tensor without axes has one row and one column.

    A row is one index of the first axis, its columns are all elements below.
    """

    values: TensorValues
    rows: tuple[int, int]
    columns: tuple[int, int]
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    def pieces(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """The values of the block, row after row, each with the number of elements read for it."""
        begin = self.rows[0] * self.width
        whole = self.columns == (0, self.width)
        for piece in self.values.pieces(begin, self.rows[1] * self.width):
            if whole:
                yield piece.size, piece
            else:
                column = np.arange(begin, begin + piece.size) % self.width
                inside = (column >= self.columns[0]) & (column < self.columns[1])
                yield piece.size, piece[inside]
            begin += piece.size

    def array(self) -> NDArray[Any]:
        """All values of the block [rows, columns]."""
        pieces = [piece for _, piece in self.pieces()]
        return np.concatenate(pieces).reshape(self.shape)


def print_tensor(
    terminal: Terminal,
    path: str,
    source: Source,
    name: str,
    rows: Interval | None,
    columns: Interval | None,
) -> None:
    """Print statistics of a tensor, or of a range of it together with the values.

    Raises:
        ArtifactError: There is no such tensor, or its words are illegal.
        CheckpointError: There is no such tensor, or its type cannot be read.
        UsageError: The range is outside the tensor or too large to be printed.
    """
    values = find_values(source, name)
    block = _block(values, rows, columns)
    has_range = rows is not None or columns is not None
    if has_range and prod(block.shape) > MOST_SHOWN_VALUES:
        raise UsageError(
            f"{prod(block.shape)} values are too many to print (at most {MOST_SHOWN_VALUES})",
            hint="give a smaller range, or write a file with ninfer-inspect decode",
        )
    elements = (block.rows[1] - block.rows[0]) * block.width
    decoded_bytes = 2 * elements * values.dtype.itemsize
    with Progress(terminal, "reading", total=decoded_bytes, unit="bytes") as progress:

        def one_pass() -> Iterator[NDArray[Any]]:
            for read, piece in block.pieces():
                yield piece
                progress.advance(read * values.dtype.itemsize, values.name)

        statistics = describe(one_pass)
    shown = block.array() if has_range else None
    if terminal.json:
        _print_document(terminal, path, block, statistics, shown)
    else:
        _print_lines(terminal, block, statistics, shown)


def _block(values: TensorValues, rows: Interval | None, columns: Interval | None) -> _Block:
    if columns is not None and len(values.shape) != 2:
        raise UsageError(f"--cols needs a matrix; {values.name!r} is {list(values.shape)}")
    if rows is not None and not values.shape:
        raise UsageError(f"--rows: {values.name!r} is a scalar")
    height, width = (values.shape[0], prod(values.shape[1:])) if values.shape else (1, 1)
    return _Block(values, resolve(rows, height, "--rows"), resolve(columns, width, "--cols"), width)


def _print_document(
    terminal: Terminal,
    path: str,
    block: _Block,
    statistics: Statistics,
    shown: NDArray[Any] | None,
) -> None:
    values = block.values
    terminal.print_json(
        {
            "path": path,
            "tensor": {
                "name": values.name,
                "kind": values.kind,
                "formats": list(values.formats),
                "shape": list(values.shape),
                "bytes": values.num_bytes,
            },
            "rows": list(block.rows),
            "columns": list(block.columns),
            "statistics": statistics.to_json(),
            "values": None if shown is None else json_value(_as_numbers(shown)),
        }
    )


def _print_lines(
    terminal: Terminal, block: _Block, statistics: Statistics, shown: NDArray[Any] | None
) -> None:
    values = block.values
    rows = {
        values.kind: values.name,
        "format": ", ".join(values.formats),
        "shape": str(list(values.shape)),
        "size": format_bytes(values.num_bytes),
    }
    if shown is not None:
        rows["rows"] = f"{block.rows[0]}:{block.rows[1]}"
        rows["columns"] = f"{block.columns[0]}:{block.columns[1]}"
    rows |= {
        "values": f"{statistics.count:,}",
        "min": _number(statistics.minimum),
        "max": _number(statistics.maximum),
        "mean": _number(statistics.mean),
        "std": _number(statistics.std),
        "non-finite": f"{statistics.non_finite:,}",
        "zero": f"{statistics.zeros:,} ({statistics.zero_fraction:.2%})",
    }
    if statistics.histogram:
        picture = histogram(statistics.histogram, terminal.out.encoding)
        rows["histogram"] = f"|{picture}| from min to max"
    for name, value in rows.items():
        click.echo(f"{name:<12}{printable(value)}")
    if shown is not None:
        click.echo()
        for row, line in enumerate(_as_numbers(shown).tolist(), start=block.rows[0]):
            click.echo(f"{row}: {' '.join(f'{value:.7g}' for value in line)}")


def _as_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Values whose elements are Python numbers as a list."""
    if values.dtype.kind == "b":
        return values.astype(np.uint8)
    return values if values.dtype.kind in "iuf" else values.astype(np.float32)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
