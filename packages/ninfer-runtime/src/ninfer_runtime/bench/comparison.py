"""Figures beside those of an earlier document of ``ninfer-bench --json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ninfer_format.errors import UsageError

KEYS = ("op", "format", "matrix", "N", "K", "T", "case", "test")
"""What names a row, as far as it has them."""


def read_rows(path: Path, schema: str) -> list[dict[str, Any]]:
    """The rows of an earlier document.

    Raises:
        UsageError: It is not one.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be compared with: {error}", path=path) from None
    if not isinstance(document, dict) or document.get("schema") != schema:
        raise UsageError(f"is no document of {schema}", path=path)
    rows = [*document.get("ops", []), *document.get("tests", [])]
    return [row for row in rows if isinstance(row, dict)]


def add_ratios(rows: Sequence[dict[str, Any]], earlier: Sequence[dict[str, Any]]) -> list[float]:
    """Put the speed relative to the earlier one into each row that has one, as ``ratio``.

    Args:
        rows: New rows; changed.
        earlier: Earlier rows.

    Returns:
        The ratios, above 1 where it is faster now.
    """
    speeds = {_key(row): _speed(row) for row in earlier}
    ratios = []
    for row in rows:
        before = speeds.get(_key(row))
        if before:
            row["ratio"] = _speed(row) / before
            ratios.append(row["ratio"])
    return ratios


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in KEYS)


def _speed(row: dict[str, Any]) -> float:
    return float(row["tok_s"]) if "tok_s" in row else 1e6 / float(row["us"])
