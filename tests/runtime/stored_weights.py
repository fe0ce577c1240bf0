"""Random stored matrices of every format, with values near those of trained weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from ninfer_format import Codec, Fp8RowWords, GroupedWords, Nvfp4Words, codec_for

LAYOUTS = {
    "nvfp4": "block_scale_k16_m128x4_v1",
    "fp8_e4m3fn_row_bf16": "row_scale_v1",
    "bf16": "contiguous_le_v1",
    "fp32": "contiguous_le_v1",
    "q4_g32_fp16_rows": "row_group_v1",
}


def layout_of(name: str) -> str:
    return LAYOUTS.get(name, "row_split_k128_v1")


def random_stored(
    rng: np.random.Generator, name: str, shape: tuple[int, ...], divisors: int = 1
) -> tuple[Codec[Any], np.ndarray]:
    """The codec of a random tensor and its bytes."""
    words: Any
    codec = codec_for(name, layout_of(name), shape, divisors=divisors)
    if name in ("bf16", "fp32"):
        words = rng.standard_normal(shape).astype(np.float32).view(np.uint32)
        if name == "bf16":
            words = (words >> np.uint32(16)).astype(np.uint16)
    elif name == "nvfp4":
        N, K = shape
        words = Nvfp4Words(
            rng.integers(0, 16, shape, np.uint8),
            rng.integers(0x28, 0x50, (N, K // 16), np.uint8),
            (rng.random(divisors) * 3 + 1).astype(np.float32).view(np.uint32),
        )
    elif name == "fp8_e4m3fn_row_bf16":
        codes = rng.integers(0, 0x7F, shape, np.uint8)
        codes |= rng.integers(0, 2, shape, np.uint8) << np.uint8(7)
        words = Fp8RowWords(codes, rng.integers(0x3A00, 0x3C00, shape[0], np.uint16))
    else:
        bits = int(name[1])
        low = -(1 << bits - 1) if "g64" in name else 1 - (1 << bits - 1)
        codes = rng.integers(low, 1 << bits - 1, shape, np.int8)
        groups = -(-shape[1] // (64 if "g64" in name else 32))
        words = GroupedWords(codes, rng.integers(0x1C00, 0x2400, (shape[0], groups), np.uint16))
    return codec, codec.encode(words)
