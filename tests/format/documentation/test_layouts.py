"""layouts.md: worked bytes, offsets and sizes are what the codecs write."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from ninfer_format import GroupedWords, cast_direct, codec_for
from ninfer_format.codecs.fp8_row import Fp8RowWords
from ninfer_format.codecs.nvfp4 import Nvfp4Words
from ninfer_format.codecs.trellis import tile_positions, unpack_states
from ninfer_format.layouts import LAYOUTS, RAW_BYTES_V1

LAYOUT_OF = {name: layout.name for layout in LAYOUTS.values() for name in layout.formats}


def padded_row(values: list[int], columns: int, dtype: Any) -> np.ndarray:
    row = np.zeros((1, columns), dtype)
    row[0, : len(values)] = values
    return row


def bytes_at(payload: np.ndarray, offset: int, cell: str) -> bool:
    """Whether a payload has the bytes that a cell spells out."""
    expected = bytes.fromhex(cell)
    assert expected
    return payload[offset : offset + len(expected)].tobytes() == expected


def test_the_list_is_complete(pages: Any) -> None:
    rows = pages.table("layouts", "The list", "name", "stores", "alignment")
    assert [row["name"].name for row in rows] == [*LAYOUTS, RAW_BYTES_V1]
    for row in rows:
        assert pages.section("layouts", row["name"].name), "every layout has a section"
        layout = LAYOUTS.get(row["name"].name)
        if layout is not None:
            assert tuple(row["stores"].names) == layout.formats
            assert int(row["alignment"]) == layout.alignment


def test_the_shapes_of_the_list_are_those_that_codecs_take(pages: Any) -> None:
    multiples = {
        "any, rank 0 to 16": (1, 1),
        "`[N, K]`": (1, 1),
        "`[N, K]`, N a multiple of 128, K of 64": (128, 64),
        "`[N, K]`, K a multiple of 32": (1, 32),
        "`[N, K]`, both multiples of 128": (128, 128),
    }
    for row in pages.table("layouts", "The list", "name", "shape"):
        layout = LAYOUTS.get(row["name"].name)
        if layout is not None:
            assert multiples[row["shape"]] == (layout.row_block, layout.column_block)
            assert (layout.rank is None) == row["shape"].startswith("any")


def test_worked_bytes_of_contiguous(pages: Any) -> None:
    rows = pages.table("layouts", "contiguous_le_v1", "format", "values", "bytes")
    assert len(rows) == 3
    for row in rows:
        name = row["format"].name
        words = cast_direct(np.array(row["values"].numbers), name)
        payload = codec_for(name, "contiguous_le_v1", words.shape).encode(words)
        assert payload.tobytes() == bytes.fromhex(row["bytes"])


def test_worked_bytes_of_row_split(pages: Any) -> None:
    groups = {
        row["format"].name: row
        for row in pages.table("layouts", "row_split_k128_v1", "format", "G")
    }
    rows = pages.table("layouts", "row_split_k128_v1", "format", "codes", "base", "high")
    assert [row["format"].name for row in rows] == list(groups)
    for row in rows:
        name = row["format"].name
        codec = codec_for(name, "row_split_k128_v1", (1, 70))
        group = int(groups[name]["G"])
        codes = padded_row(row["codes"].integers, 70, np.int8)
        scales = padded_row([0x3400], -(-70 // group), np.uint16)
        payload = codec.encode(GroupedWords(codes, scales))
        assert payload.size == int(row["bytes"])
        assert bytes_at(payload, 0, row["base"])
        assert bytes_at(payload, int(row["scale at"]), row["scale"])
        planes = codec.geometry.planes
        assert planes["high"].offset == int(row["high at"])
        if row["high"]:
            assert bytes_at(payload, planes["high"].offset, row["high"])
        assert planes["base"].num_bytes == 128 // group * int(groups[name]["base bytes of a group"])
        assert planes["high"].num_bytes == 128 // group * int(groups[name]["high bytes of a group"])


def test_worked_rows_of_row_split(pages: Any) -> None:
    spans = codec_for("q5_g64_fp16", "row_split_k128_v1", (6, 130)).row_slice(2, 4).spans
    rows = pages.table("layouts", "row_split_k128_v1", "plane", "from", "to", "length")
    assert [(int(row["from"]), int(row["to"]), int(row["length"])) for row in rows] == [
        (span.source, span.target, span.length) for span in spans
    ]


def test_worked_offsets_of_block_scale(pages: Any) -> None:
    layout = "block_scale_k16_m128x4_v1"
    codec = codec_for("nvfp4", layout, (256, 128))
    codes = np.zeros((256, 128), np.uint8)
    divisors = np.array([0x3F800000], np.uint32)
    rows = pages.table("layouts", layout, "row", "block", "offset in the plane")
    assert len(rows) == 10
    for row in rows:
        scales = np.zeros((256, 8), np.uint8)
        scales[int(row["row"]), int(row["block"])] = 0x38
        payload = codec.encode(Nvfp4Words(codes, scales, divisors))
        plane = codec.geometry.planes["scale"]
        stored = payload[plane.offset : plane.end]
        assert np.flatnonzero(stored).tolist() == [int(row["offset in the plane"])]
    text = pages.section("layouts", layout)
    worked = re.search(r"Codes ([\d ]+) in the first columns are the bytes `([\dA-F ]+)`", text)
    assert worked
    codes[0, :4] = [int(code) for code in worked[1].split()]
    payload = codec.encode(Nvfp4Words(codes, np.zeros((256, 8), np.uint8), divisors))
    assert bytes_at(payload, 0, worked[2])


def test_worked_bytes_of_row_scale(pages: Any) -> None:
    codec = codec_for("fp8_e4m3fn_row_bf16", "row_scale_v1", (2, 3))
    codes = np.array([[0x38, 0xB8, 0], [0x7E, 1, 0x80]], np.uint8)
    payload = codec.encode(Fp8RowWords(codes, np.array([0x3F80, 0x4000], np.uint16)))
    assert codec.decode(payload).tolist() == [[1, -1, 0], [896, 2.0**-8, 0]]
    check_planes(pages, codec, payload)


def test_worked_bytes_of_row_group(pages: Any) -> None:
    codec = codec_for("q4_g32_fp16_rows", "row_group_v1", (1, 32))
    codes = padded_row([1, -1, 7, -8, 0, 3], 32, np.int8)
    payload = codec.encode(GroupedWords(codes, np.array([[0x3800]], np.uint16)))
    check_planes(pages, codec, payload)


def check_planes(pages: Any, codec: Any, payload: np.ndarray) -> None:
    rows = pages.table("layouts", codec.layout, "plane", "offset", "bytes")
    assert [row["plane"] for row in rows] == list(codec.geometry.planes)
    for row in rows:
        assert int(row["offset"]) == codec.geometry.planes[row["plane"]].offset
        assert bytes_at(payload, int(row["offset"]), row["bytes"])


def test_worked_states_of_the_trellis(pages: Any) -> None:
    rows = pages.table("layouts", "trellis_t16_v1", "h", "ring bits", "states")
    assert len(rows) == 5
    for row in rows:
        tile = np.zeros(16 * int(row["h"]), np.uint8)
        for bit in row["ring bits"].integers:
            tile[bit // 8] |= 1 << bit % 8
        states = unpack_states(tile)
        listed = (pair.split(": ") for pair in row["states"].split(", "))
        expected = {int(t): int(state, 16) for t, state in listed}
        assert {int(t): int(states[t]) for t in np.flatnonzero(states)} == expected
    k, n = tile_positions()
    positions = pages.table("layouts", "trellis_t16_v1", "state", "input k", "output n")
    assert len(positions) == 9
    for row in positions:
        t = int(row["state"])
        assert (k[t], n[t]) == (int(row["input k"]), int(row["output n"]))


def test_worked_sizes(pages: Any) -> None:
    rows = pages.table("layouts", "Sizes", "format", "shape", "bytes")
    assert {row["format"].name for row in rows} >= {"bf16", "q5_g64_fp16", "nvfp4", "exl3_mul1"}
    for row in rows:
        codec = codec_for(
            row["format"].name,
            LAYOUT_OF[row["format"].name],
            tuple(json.loads(row["shape"])),
            divisors=int(row["divisors"] or 1),
            bitrate_half_bits=int(row["bitrate_half_bits"]) if row["bitrate_half_bits"] else None,
        )
        assert codec.geometry.num_bytes == int(row["bytes"])
