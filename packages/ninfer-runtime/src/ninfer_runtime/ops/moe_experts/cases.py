"""What `moe_experts` is tested and timed with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertsCase:
    """Sizes of one call.

    Attributes:
        tokens: T.
        width: D.
        experts: E.
        experts_per_token: A.
        inner: I, rows of an expert's gate.
        shared: S, rows of the shared expert's gate.
    """

    tokens: int
    width: int
    experts: int
    experts_per_token: int
    inner: int
    shared: int


TEST_CASES = (
    ExpertsCase(1, 16, 1, 1, 8, 8),
    ExpertsCase(5, 33, 6, 6, 7, 3),
    ExpertsCase(1, 128, 8, 2, 128, 128),
    ExpertsCase(40, 128, 8, 2, 128, 256),
    ExpertsCase(9, 64, 32, 4, 16, 48),
)

MODEL_CASES = {"35b": ExpertsCase(1, 2048, 256, 8, 512, 512)}
"""Sizes of the models, but for the number of tokens."""


@dataclass(frozen=True, slots=True)
class BankFormats:
    """Formats of the matrices of a layer: of the experts, and of the shared one.

    Attributes:
        gate_up: Of the gates and up matrices.
        down: Of the down matrices.
    """

    gate_up: tuple[str, str]
    down: tuple[str, str]


BANK_FORMATS = (
    BankFormats(("q4_g64_fp16", "q8_g32_fp16"), ("q5_g64_fp16", "q8_g32_fp16")),
    BankFormats(("q4_g64_fp16", "q8_g32_fp16"), ("q6_g64_fp16", "q8_g32_fp16")),
    *(
        BankFormats((name, name), (name, name))
        for name in ("nvfp4", "q8_g32_fp16", "fp8_e4m3fn_row_bf16", "bf16")
    ),
)
"""Those of the recipes, and each format that has eight bits or more alone."""

TIMED_TOKENS = (1, 2, 4, 8, 16, 32, 1024)
