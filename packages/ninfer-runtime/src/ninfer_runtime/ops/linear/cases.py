"""What `linear` is tested and timed with."""

from __future__ import annotations

WEIGHT_FORMATS = (
    "q4_g64_fp16",
    "q5_g64_fp16",
    "q6_g64_fp16",
    "q8_g32_fp16",
    "nvfp4",
    "fp8_e4m3fn_row_bf16",
    "bf16",
)

DENSE_27B_SHAPES = {
    "gate_up": (34816, 5120),
    "down": (5120, 17408),
    "value_z": (12288, 5120),
    "query_key": (7168, 5120),
    "out": (5120, 6144),
    "lm_head": (248320, 5120),
}
"""[N, K] of the matrices of the dense 27B model that decide its speed."""

OTHER_MODEL_SHAPES = {
    "27b.delta_query_key": (4096, 5120),
    "27b.mtp_fc": (5120, 10240),
    "35b.delta_in": (12288, 2048),
    "35b.out": (2048, 4096),
    "35b.shared_down": (2048, 512),
}

MODEL_SHAPES = DENSE_27B_SHAPES | OTHER_MODEL_SHAPES

ADDED_SHAPES = frozenset(MODEL_SHAPES[name] for name in ("down", "out", "35b.out"))
"""Of products that are added to a residual."""

GATED_SHAPES = frozenset({MODEL_SHAPES["gate_up"]})
"""Of gates and what they gate, together."""

RULED_SHAPES = {
    "27b.delta_ab": (96, 5120),
    "35b.delta_ab": (64, 2048),
    "35b.lm_head": (248320, 2048),
}
"""Further matrices of the models, which have no measured schedule."""

STACKS = (
    (
        ("bf16", (96, 5120)),
        ("q4_g64_fp16", (4096, 5120)),
        ("q5_g64_fp16", (12288, 5120)),
    ),
    (("q4_g64_fp16", (7168, 5120)), ("q5_g64_fp16", (7168, 5120))),
    (("bf16", (96, 5120)), ("fp8_e4m3fn_row_bf16", (16384, 5120))),
    (("bf16", (64, 2048)), ("q8_g32_fp16", (12288, 2048))),
)
"""Weights [N, K] of the models that the same rows are multiplied with, the smallest first."""

TEST_COLUMNS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 96, 100, 127, 128, 130)

TEST_SHAPES = (
    (16, 64),
    (128, 128),
    (2176, 5120),
    (640, 17408),
    (384, 6144),
    (256, 10240),
    (5120, 512),
    (1024, 2048),
    (640, 4096),
    (128, 1152),
    (257, 2048),
    (1, 320),
    (2000, 100),
)
"""Sizes of the models, and sizes that are no multiple of anything. nvfp4 takes what it can store."""

TIMED_COLUMNS = (1, 2, 4, 8, 16, 32)
