from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ninfer_format import Fp8RowWords, GroupedWords, Nvfp4Words, codec_for

LAYOUTS = {
    "nvfp4": "block_scale_k16_m128x4_v1",
    "fp8_e4m3fn_row_bf16": "row_scale_v1",
    "bf16": "contiguous_le_v1",
}


@pytest.fixture
def stored_weight(rng: np.random.Generator):
    """A random stored matrix: its codec and its bytes; values near those of a trained weight."""

    def make(name: str, shape: tuple[int, int], divisors: int = 1):
        N, K = shape
        layout = LAYOUTS.get(name, "row_split_k128_v1")
        words: Any
        codec = codec_for(name, layout, shape, divisors=divisors)
        if name == "bf16":
            values = rng.standard_normal(shape).astype(np.float32)
            words = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        elif name == "nvfp4":
            words = Nvfp4Words(
                rng.integers(0, 16, shape, np.uint8),
                rng.integers(0x28, 0x50, (N, K // 16), np.uint8),
                (rng.random(divisors) * 3 + 1).astype(np.float32).view(np.uint32),
            )
        elif name == "fp8_e4m3fn_row_bf16":
            codes = rng.integers(0, 0x7F, shape, np.uint8)
            codes |= rng.integers(0, 2, shape, np.uint8) << np.uint8(7)
            words = Fp8RowWords(codes, rng.integers(0x3A00, 0x3C00, N, np.uint16))
        else:
            bits = int(name[1])
            low = -127 if bits == 8 else -(1 << bits - 1)
            codes = rng.integers(low, 1 << bits - 1, shape, np.int8)
            groups = -(-K // (32 if bits == 8 else 64))
            words = GroupedWords(codes, rng.integers(0x1C00, 0x2400, (N, groups), np.uint16))
        return codec, codec.encode(words)

    return make
