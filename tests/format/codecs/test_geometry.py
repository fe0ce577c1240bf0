"""Encoded sizes against a table made by another implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ninfer_format import ArtifactError, TensorRecord, check_encoding, codec_for

CASES = json.loads(
    (Path(__file__).parents[2] / "data/conformance/vectors/layout_sizes.json").read_text()
)
# Layouts that this release does not store; their cases are all refused as unknown.
LATER_LAYOUTS = frozenset(
    {"row_scale_v1", "block_scale_k16_m128x4_v1", "row_group_v1", "trellis_t16_v1"}
)


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
    if "error" in case or case["layout"] in LATER_LAYOUTS:
        with pytest.raises(ArtifactError, match="object 'w'") as raised:
            check_encoding(record)
        assert raised.value.category == "encoding"
        return
    check_encoding(record)
    geometry = codec_for(case["format"], case["layout"]).geometry(record.shape)
    assert geometry.num_bytes == case["bytes"]
    for name, plane in geometry.planes.items():
        if "geometry" in case:
            assert plane.offset == case["geometry"][f"{name}_offset"]
            assert plane.num_bytes == case["geometry"][f"{name}_bytes"]


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
        codec_for("bf16", "contiguous_le_v1").geometry(shape)
    assert raised.value.category == "encoding"


def test_sizes_beyond_64_bits_are_refused() -> None:
    with pytest.raises(ArtifactError, match="encoded size is too large"):
        codec_for("fp32", "contiguous_le_v1").geometry((2**32, 2**31))
    with pytest.raises(ArtifactError, match="encoded size is too large"):
        codec_for("q8_g32_fp16", "row_split_k128_v1").geometry((2**63, 1))
