"""How ``ninfer-bench`` writes what it has measured, and where to."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from ninfer_format.commandline import new_output

FORMATS = ("table", "json", "csv", "md")

Table = Callable[[dict[str, Any]], Iterator[str]]
"""Makes the lines of a document's tables."""


def write_document(
    document: dict[str, Any],
    table: Table,
    *,
    schema: str,
    form: str,
    path: Path | None,
    force: bool,
) -> None:
    """Write a document.

    Args:
        document: What was measured.
        table: Makes the lines of ``table``.
        schema: Name and version of the JSON document.
        form: One of `FORMATS`.
        path: Where to; None for the standard output.
        force: Replace an existing file.
    """
    if form == "table":
        text = "\n".join(table(document))
    elif form == "json":
        whole = {"schema": schema, "ok": True} | document
        text = json.dumps(whole, ensure_ascii=False, indent=2, allow_nan=False)
    else:
        text = _csv(*_cells(document)) if form == "csv" else _markdown(*_cells(document))
    if path is None:
        click.echo(text)
        return
    with new_output(path, force=force) as file:
        file.write(f"{text}\n".encode())


def _cells(document: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Names of the columns, and the rows; what is a list, as the figures of single runs, is not in."""
    rows = [*document.get("ops", []), *document.get("tests", [])]
    names = list(dict.fromkeys(name for row in rows for name in row))
    names = [name for name in names if not any(isinstance(row.get(name), list) for row in rows)]
    return names, [[str(row.get(name, "")) for name in names] for row in rows]


def _csv(names: list[str], rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([names, *rows])
    return text.getvalue().rstrip("\n")


def _markdown(names: list[str], rows: list[list[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
