from __future__ import annotations

import pytest

from ninfer_format.inspect.pictures import bar, histogram


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [(0, ""), (1, "████"), (0.5, "██"), (0.53125, "██▏"), (0.97, "███▉"), (1e-9, "▏")],
)
def test_bars_have_eighths(fraction: float, expected: str) -> None:
    assert bar(fraction, 4, "utf-8") == expected


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_encodings_without_blocks_have_ascii(encoding: str) -> None:
    assert bar(0.5, 4, encoding) == "##"
    assert bar(1e-9, 4, encoding) == "#"
    assert bar(0, 4, encoding) == ""
    assert histogram([0, 1, 50, 100], encoding) == " .=@"


def test_histograms_are_relative_to_the_largest_count() -> None:
    assert histogram([0, 1, 50, 100], "utf-8") == " ▁▄█"
    assert histogram([7, 7], "utf-8") == "██"
    assert histogram([0, 0], "utf-8") == "  "
    assert histogram([], "utf-8") == ""
