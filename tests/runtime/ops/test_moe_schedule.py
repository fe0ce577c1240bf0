"""How the kernels of a mixture of experts are spread over GPUs, without one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ninfer_runtime.cuda.target import TYPICAL_TARGETS
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS
from ninfer_runtime.ops.moe_experts.cases import BANK_FORMATS, MODEL_CASES
from ninfer_runtime.ops.moe_experts.few_schedule import (
    Call,
    Formats,
    down_schedule,
    gate_up_schedule,
)

CASE = MODEL_CASES["35b"]
ONE = Call(1, CASE.width, CASE.experts_per_token, CASE.experts, CASE.inner, CASE.shared)
HOPPER = TYPICAL_TARGETS["sm_90a"]
RESERVED = 1024


def formats_of(names: tuple[str, str]) -> Formats:
    return RECORD_FORMATS[names[0]], RECORD_FORMATS[names[1]]


PAIRS = [(formats_of(each.gate_up), formats_of(each.down)) for each in BANK_FORMATS]
RECIPES = PAIRS[:2]


@pytest.mark.parametrize(("gate_up", "down"), PAIRS)
@pytest.mark.parametrize("architecture", TYPICAL_TARGETS)
@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 9, 64])
def test_blocks_fit(gate_up, down, architecture, tokens):
    target, call = TYPICAL_TARGETS[architecture], replace(ONE, tokens=tokens)
    first, second = gate_up_schedule(gate_up, call, target), down_schedule(down, call, target)
    assert first.gate_up_bytes(gate_up, call, target) <= target.shared_bytes
    assert second.down_bytes(down, call) <= target.shared_bytes


@pytest.mark.parametrize(("gate_up", "down"), RECIPES)
def test_both_kernels_of_one_token_lie_beside_each_other(gate_up, down):
    first = gate_up_schedule(gate_up, ONE, HOPPER)
    second = down_schedule(down, ONE, HOPPER)
    shared = first.gate_up_bytes(gate_up, ONE, HOPPER) + second.down_bytes(down, ONE)
    assert shared + 2 * RESERVED <= HOPPER.shared_bytes + RESERVED
    assert first.room
    assert second.room
