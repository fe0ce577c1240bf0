"""formats.md: names, sizes, ranges and tables are those of the code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ninfer_format import ArtifactError, GroupedWords, codec_for
from ninfer_format.codecs.small_floats import E2M1_VALUES, E4M3FN_VALUES
from ninfer_format.codecs.trellis import codebook
from ninfer_format.dtypes import FORMATS, GroupedFormat
from ninfer_format.layouts import LAYOUTS

LAYOUT_OF = {name: layout.name for layout in LAYOUTS.values() for name in layout.formats}


def test_the_list_is_complete(pages: Any) -> None:
    rows = pages.table("formats", "The list", "name", "bits per weight")
    assert [row["name"].name for row in rows] == list(FORMATS)


def test_bits_per_weight_are_those_of_the_layouts(pages: Any) -> None:
    N, K, h = 1024, 4096, 6
    formulas = {
        "8 + 16 / K": 8 + 16 / K,
        "h / 2 + 32 (1 / N + 1 / K)": h / 2 + 32 * (1 / N + 1 / K),
    }
    for row in pages.table("formats", "The list", "name", "bits per weight"):
        name = row["name"].name
        rate = h if name == "exl3_mul1" else None
        codec = codec_for(name, LAYOUT_OF[name], (N, K), bitrate_half_bits=rate)
        cell = row["bits per weight"]
        bits = formulas.pop(cell) if cell in formulas else float(cell)
        # The divisor of nvfp4 is one word a matrix.
        assert codec.geometry.num_bytes * 8 == pytest.approx(bits * N * K, abs=32)
    assert not formulas


def test_tables_of_small_floats_are_right(pages: Any) -> None:
    (row,) = pages.table("formats", "Small floats", "word", "0x0", "0x7")
    values = [float(row[f"0x{word}"]) for word in range(8)]
    assert values == E2M1_VALUES[:8].tolist()
    assert E2M1_VALUES[8:].tolist() == [-value for value in values]
    for row in pages.table("formats", "Small floats", "word", "value", ""):
        for word in row["word"].integers:
            expected, found = np.float32(row["value"]), E4M3FN_VALUES[word]
            assert np.array_equal(expected, found, equal_nan=True)
            assert np.isnan(found) or np.signbit(expected) == np.signbit(found)


def test_table_of_trellis_integers_is_right(pages: Any) -> None:
    (row,) = pages.table("formats", "exl3_mul1", "state", "65535")
    states = [int(header) for header in row if header != "state"]
    assert len(states) == 9
    for state in states:
        assert codebook()[state] == int(row[str(state)])


def test_the_ranges_of_codes_are_those_that_codecs_take(pages: Any) -> None:
    checked = 0
    for row in pages.table("formats", "The list", "name", "code", "scale"):
        name = row["name"].name
        grouped = FORMATS[name]
        if not isinstance(grouped, GroupedFormat):
            continue
        checked += 1
        codec = codec_for(name, LAYOUT_OF[name], (1, 64))
        assert row["scale"] == f"binary16 for {grouped.group} columns"
        groups = 64 // grouped.group
        lowest, highest = type(row["code"])(row["code"].replace(" to ", " ")).integers
        for code, legal in ((lowest, True), (highest, True), (lowest - 1, False)):
            words = GroupedWords(
                np.full((1, 64), code, np.int8), np.full((1, groups), 0x3C00, np.uint16)
            )
            if legal:
                codec.validate(words)
            else:
                with pytest.raises(ArtifactError, match="illegal"):
                    codec.validate(words)
    assert checked == 5
