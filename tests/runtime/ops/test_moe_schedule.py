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
from ninfer_runtime.ops.moe_experts.mixture_schedule import (
    MOST_TOKENS,
    MixtureFormats,
    mixture_schedule,
)

CASE = MODEL_CASES["35b"]
ONE = Call(1, CASE.width, CASE.experts_per_token, CASE.experts, CASE.inner, CASE.shared)
HOPPER = TYPICAL_TARGETS["sm_90a"]


def formats_of(names: tuple[str, str]) -> Formats:
    return RECORD_FORMATS[names[0]], RECORD_FORMATS[names[1]]


PAIRS = [(formats_of(each.gate_up), formats_of(each.down)) for each in BANK_FORMATS]
RECIPES = PAIRS[:2]


@pytest.mark.parametrize(("gate_up", "down"), PAIRS)
@pytest.mark.parametrize("architecture", TYPICAL_TARGETS)
@pytest.mark.parametrize("tokens", [1, 8, 9, 64])
def test_blocks_fit(gate_up, down, architecture, tokens):
    target, call = TYPICAL_TARGETS[architecture], replace(ONE, tokens=tokens)
    first, second = gate_up_schedule(gate_up, call, target), down_schedule(down, call, target)
    assert first.gate_up_bytes(gate_up, call) <= target.shared_bytes
    assert second.down_bytes(down, call) <= target.shared_bytes


@pytest.mark.parametrize("formats", PAIRS)
@pytest.mark.parametrize("architecture", TYPICAL_TARGETS)
def test_sums_of_one_kernel_have_the_same_order_for_any_number_of_tokens(formats, architecture):
    target, both = TYPICAL_TARGETS[architecture], MixtureFormats(*formats)
    found = set()
    for tokens in range(1, MOST_TOKENS + 1):
        call = replace(ONE, tokens=tokens)
        schedule = mixture_schedule(both, call, target)
        if schedule is not None:
            assert schedule.shared_bytes(both, call) <= target.shared_bytes
        found.add(schedule and (schedule.warps, schedule.down_stage))
    assert len(found) == 1


@pytest.mark.parametrize("formats", RECIPES)
@pytest.mark.parametrize("architecture", TYPICAL_TARGETS)
def test_recipes_have_one_kernel_on_every_gpu(formats, architecture):
    both = MixtureFormats(*formats)
    assert mixture_schedule(both, ONE, TYPICAL_TARGETS[architecture]) is not None


@pytest.mark.parametrize("formats", RECIPES)
def test_the_kernel_of_one_token_leaves_room_for_its_neighbours(formats):
    """Threads and shared memory of a block of 8 warps before it, and of one behind."""
    both = MixtureFormats(*formats)
    schedule = mixture_schedule(both, ONE, HOPPER)
    assert schedule is not None
    assert schedule.room >= schedule.threads + 256
    assert schedule.shared_bytes(both, ONE) + 72 * 1024 <= HOPPER.shared_bytes


@pytest.mark.parametrize(
    "call",
    [
        replace(ONE, tokens=9),
        replace(ONE, tokens=0),
        replace(ONE, per_token=33),
        replace(ONE, experts=513),
        replace(ONE, shared=4096),
        replace(ONE, inner=2048),
    ],
)
def test_what_has_no_kernel_of_its_own(call):
    assert mixture_schedule(MixtureFormats(*PAIRS[0]), call, HOPPER) is None
