"""Lists as lines with aligned columns, which stay whole however wide the terminal is."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ninfer_format.commandline.printable import printable


def aligned(
    header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()
) -> Iterator[str]:
    """Make lines with columns of equal width.

    Args:
        header: Names of the columns.
        rows: The cells of each line; what a terminal would act upon in them is escaped.
        numbers: The columns that are aligned to the right.
    """
    lines = [header, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (
            cell.rjust(width) if name in numbers else cell.ljust(width)
            for name, cell, width in zip(header, line, widths, strict=True)
        )
        yield "  ".join(cells).rstrip()
