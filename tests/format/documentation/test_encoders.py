"""encoders.md: the list is complete and the examples are what the encoders give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ninfer_format import (
    cast_direct,
    codec_for,
    fp8_row_maxabs,
    grouped_absmax,
    nvfp4_absmax,
    q4_rows_maxabs,
)
from ninfer_format.dtypes import FORMATS
from ninfer_format.layouts import LAYOUTS

LAYOUT_OF = {name: layout.name for layout in LAYOUTS.values() for name in layout.formats}

ENCODERS: dict[str, Callable[[np.ndarray, str], Any]] = {
    "grouped_absmax": grouped_absmax,
    "q4_rows_maxabs": lambda values, format: q4_rows_maxabs(values),
    "fp8_row_maxabs": lambda values, format: fp8_row_maxabs(values),
    "nvfp4_absmax": lambda values, format: nvfp4_absmax(values),
}


def test_the_list_of_encoders_names_their_formats(pages: Any) -> None:
    rows = pages.table("encoders", "Encoders", "name", "target")
    targets = {row["name"].name: row["target"].names for row in rows}
    assert set(targets) == {"cast_direct", *ENCODERS}
    every = [name for names in targets.values() for name in names]
    assert set(every) == set(FORMATS) - {"exl3_mul1"}
    assert len(every) == len(set(every))
    for row in pages.table("encoders", "Examples", "encoder", "format"):
        assert row["format"].name in targets[row["encoder"].name]
    for name in targets:
        assert pages.section("encoders", name), "every encoder has a section"


def test_examples_of_the_encoders(pages: Any) -> None:
    rows = pages.table("encoders", "Examples", "encoder", "format", "first values", "codes")
    assert {row["encoder"].name for row in rows} == {"cast_direct", *ENCODERS}
    for row in rows:
        encoder, name = row["encoder"].name, row["format"].name
        values = np.zeros((1, 128))
        values[0, : len(row["first values"].numbers)] = row["first values"].numbers
        codes = row["codes"].integers
        if encoder == "cast_direct":
            assert cast_direct(values, name)[0, : len(codes)].tolist() == codes
            continue
        if encoder == "nvfp4_absmax":
            values = values.repeat(128, axis=0)
        words = ENCODERS[encoder](values, name)
        assert words.codes[0, : len(codes)].tolist() == codes
        assert not words.codes[0, len(codes) :].any()
        assert int(words.scales.reshape(-1)[0]) == int(row["scale word"], 0)
        if row["divisor word"]:
            assert words.divisors.tolist() == [int(row["divisor word"], 0)]
        codec_for(name, LAYOUT_OF[name], values.shape).validate(words)
