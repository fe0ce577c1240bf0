"""How versions 1 and 2 spell formats, layouts and the resource encoding, and what version 3 says.

The bytes are the same under both names.
"""

from __future__ import annotations

from typing import Literal

LegacyVersion = Literal[1, 2]

_V1_FORMATS = {
    "BF16": "bf16",
    "FP32": "fp32",
    "I32": "int32",
    "Q4G64_F16S": "q4_g64_fp16",
    "Q5G64_F16S": "q5_g64_fp16",
    "Q6G64_F16S": "q6_g64_fp16",
    "W8G32_F16S": "q8_g32_fp16",
}
_V2_FORMATS = _V1_FORMATS | {
    "NVFP4": "nvfp4",
    "FP8_E4M3FN_ROW_BF16S": "fp8_e4m3fn_row_bf16",
}
FORMATS: dict[LegacyVersion, dict[str, str]] = {1: _V1_FORMATS, 2: _V2_FORMATS}

_V1_LAYOUTS = {
    "contiguous-le-v1": "contiguous_le_v1",
    "row-split-k128-v1": "row_split_k128_v1",
}
_V2_LAYOUTS = _V1_LAYOUTS | {
    "blockscale-k16-m128x4-v1": "block_scale_k16_m128x4_v1",
    "row-scale-v1": "row_scale_v1",
}
LAYOUTS: dict[LegacyVersion, dict[str, str]] = {1: _V1_LAYOUTS, 2: _V2_LAYOUTS}

ENCODINGS = {"raw-bytes-v1": "raw_bytes_v1"}
