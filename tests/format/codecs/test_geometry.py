"""Encoded sizes against a table made by another implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ninfer_format import ArtifactError, TensorRecord, check_encoding, codec_for, codec_of

CASES = json.loads(
    (Path(__file__).parents[2] / "data/conformance/vectors/layout_sizes.json").read_text()
)
# What the table calls the offset and the size of each plane.
PLANES: dict[str, dict[str, tuple[str | None, str | None]]] = {
    "row_split_k128_v1": {
        "base": ("base_offset", "base_bytes"),
        "high": ("high_offset", "high_bytes"),
        "scale": ("scale_offset", "scale_bytes"),
    },
    "row_scale_v1": {
        "code": (None, "code_plane_bytes"),
        "scale": ("scale_plane_offset", "scale_plane_bytes"),
    },
    "block_scale_k16_m128x4_v1": {
        "code": (None, "code_plane_bytes"),
        "scale": ("scale_plane_offset", "scale_plane_bytes"),
        "divisors": ("weight_divisor_offset", None),
    },
    "row_group_v1": {
        "code": (None, "code_plane_bytes"),
        "scale": ("scale_plane_offset", "scale_plane_bytes"),
    },
    "trellis_t16_v1": {
        "trellis": (None, "trellis_bytes"),
        "suh": ("input_scale_offset", "input_scale_bytes"),
        "svh": ("output_scale_offset", "output_scale_bytes"),
    },
}


def record_of(case: dict[str, Any], num_bytes: int, offset: int = 0) -> TensorRecord:
    return TensorRecord(
        "w",
        tuple(case["shape"]),
        case["format"],
        case["layout"],
        offset,
        num_bytes,
        case.get("divisors", 1),
        case.get("bitrate_half_bits"),
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_size_matches_the_table(case: dict[str, Any]) -> None:
    record = record_of(case, case.get("bytes", 256))
    if "error" in case:
        with pytest.raises(ArtifactError, match="object 'w'") as raised:
            check_encoding(record)
        assert raised.value.category == "encoding"
        return
    check_encoding(record)
    geometry = codec_of(record).geometry
    assert geometry.num_bytes == case["bytes"]
    if "geometry" not in case:
        assert [*geometry.planes] == ["words"]
        return
    assert geometry.planes.keys() == PLANES[case["layout"]].keys()
    for name, (offset, num_bytes) in PLANES[case["layout"]].items():
        plane = geometry.planes[name]
        assert plane.offset == (case["geometry"][offset] if offset else 0)
        if num_bytes:
            assert plane.num_bytes == case["geometry"][num_bytes]
    assert plane.end == case["geometry"]["payload_bytes"]


@pytest.mark.parametrize(
    ("num_bytes", "offset", "message"),
    [
        (271, 0, r"wrong size \(expected 272 bytes, found 271\)"),
        (273, 0, "wrong size"),
        (272, 128, "misaligned"),
        (272, 1, "misaligned"),
    ],
)
def test_size_and_alignment_must_be_exact(num_bytes: int, offset: int, message: str) -> None:
    case = {"shape": [2, 130], "format": "q4_g64_fp16", "layout": "row_split_k128_v1"}
    with pytest.raises(ArtifactError, match=message):
        check_encoding(record_of(case, num_bytes, offset))


@pytest.mark.parametrize("shape", [(True, 2), (2.0, 2), (2, -1), (2**40, 2**40)])
def test_dimensions_must_be_positive_integers(shape: tuple[Any, ...]) -> None:
    with pytest.raises(ArtifactError) as raised:
        codec_for("bf16", "contiguous_le_v1", shape)
    assert raised.value.category == "encoding"


def test_sizes_beyond_64_bits_are_refused() -> None:
    with pytest.raises(ArtifactError, match="encoded size is too large"):
        codec_for("fp32", "contiguous_le_v1", (2**32, 2**31))
    with pytest.raises(ArtifactError, match="encoded size is too large"):
        codec_for("q8_g32_fp16", "row_split_k128_v1", (2**63, 1))


def test_elements_beyond_64_bits_are_refused_even_if_their_bytes_are_not() -> None:
    with pytest.raises(ArtifactError, match=r"more than 2\^64-1 elements"):
        codec_for("q4_g64_fp16", "row_split_k128_v1", (2**32, 2**32))
    codec = codec_for("q4_g64_fp16", "row_split_k128_v1", (2**32, 2**32 - 128))
    assert codec.geometry.num_bytes == 2**32 * (2**32 - 128) * 17 // 32


@pytest.mark.parametrize(
    ("format_", "layout", "shape", "members", "message"),
    [
        ("bf16", "contiguous_le_v1", (4,), {"divisors": 2}, "has no divisors"),
        ("bf16", "contiguous_le_v1", (4,), {"bitrate_half_bits": 4}, "has no bit rate"),
        ("q4_g64_fp16", "row_split_k128_v1", (4, 4), {"divisors": 2}, "has no divisors"),
        ("nvfp4", "block_scale_k16_m128x4_v1", (256, 64), {"bitrate_half_bits": 4}, "no bit rate"),
        ("nvfp4", "block_scale_k16_m128x4_v1", (256, 64), {"divisors": 0}, "do not share out"),
        ("nvfp4", "block_scale_k16_m128x4_v1", (256, 64), {"divisors": -1}, "do not share out"),
        ("nvfp4", "block_scale_k16_m128x4_v1", (256, 64), {"divisors": 3}, "do not share out"),
        (
            "nvfp4",
            "block_scale_k16_m128x4_v1",
            (384, 64),
            {"divisors": 2},
            "2 divisors do not share out 384",
        ),
        ("nvfp4", "block_scale_k16_m128x4_v1", (128, 64), {"divisors": 2}, "do not share out"),
        ("nvfp4", "block_scale_k16_m128x4_v1", (130, 64), {}, "does not fit"),
        ("nvfp4", "block_scale_k16_m128x4_v1", (128, 96), {}, "does not fit"),
        ("nvfp4", "block_scale_k16_m128x4_v1", (128,), {}, "expected rank 2, found rank 1"),
        ("exl3_mul1", "trellis_t16_v1", (128, 128), {}, "half_bits 2 to 16, found None"),
        ("exl3_mul1", "trellis_t16_v1", (128, 128), {"bitrate_half_bits": 1}, "needs a bit rate"),
        ("exl3_mul1", "trellis_t16_v1", (128, 128), {"bitrate_half_bits": 17}, "needs a bit rate"),
        ("fp8_e4m3fn_row_bf16", "row_split_k128_v1", (4, 4), {}, "does not store"),
        ("raw", "row_split_k128_v1", (4, 4), {}, "unknown numeric format"),
        ("bf16", "raw_bytes_v1", (4, 4), {}, "unknown storage layout"),
    ],
)
def test_what_a_layout_cannot_store_is_refused(
    format_: str, layout: str, shape: tuple[int, ...], members: dict[str, int], message: str
) -> None:
    with pytest.raises(ArtifactError, match=message) as raised:
        codec_for(format_, layout, shape, **members)
    assert raised.value.category == "encoding"
