"""Which products go together in one launch, for every architecture, without a device."""

from __future__ import annotations

import pytest

from ninfer_runtime.cuda.target import TYPICAL_TARGETS
from ninfer_runtime.ops.linear.cases import STACKS
from ninfer_runtime.ops.linear.schedule import problem_of, x_rows_of
from ninfer_runtime.ops.linear.stacked import choose_stacked
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS

HOPPER = TYPICAL_TARGETS["sm_90a"]


def problems_of(stack, columns):
    return [problem_of(RECORD_FORMATS[name], shape, columns) for name, shape in stack]


@pytest.mark.parametrize("architecture", TYPICAL_TARGETS)
@pytest.mark.parametrize("columns", range(1, 9))
@pytest.mark.parametrize("stack", STACKS)
def test_every_block_has_a_row_tile(architecture, columns, stack):
    target = TYPICAL_TARGETS[architecture]
    problems = problems_of(stack, columns)
    stacked = choose_stacked(problems, target)
    if stacked is None:
        assert target != HOPPER
        return
    assert target.has_clusters
    shares, geometry = stacked.shares(problems, target), stacked.geometry(problems, target)
    first = stacked.parts[0]
    assert geometry.blocks == sum(shares) <= target.multiprocessors * first.blocks
    assert geometry.shared_bytes <= target.shared_for(first.blocks)
    for part, problem, share in zip(stacked.parts, problems, shares, strict=True):
        assert 1 <= share <= problem.tiles
        assert part.fits(problem, target)
        assert (part.warps, part.blocks, part.resident) == (
            first.warps,
            first.blocks,
            first.resident,
        )
        assert (part.x_rows, part.splits) == (x_rows_of(columns, target), 1)


@pytest.mark.parametrize("stack", STACKS)
def test_no_other_shares_end_sooner(stack):
    """A block that is moved between two products makes the one that gives it end no sooner."""
    problems = problems_of(stack, 1)
    stacked = choose_stacked(problems, HOPPER)
    assert stacked is not None
    shares = stacked.shares(problems, HOPPER)

    def end(shares):
        return max(
            problem.record_format.record_bytes * -(-problem.tiles // share)
            for problem, share in zip(problems, shares, strict=True)
        )

    for giver in range(len(shares)):
        for taker in range(len(shares)):
            for moved in range(1, shares[giver]):
                other = list(shares)
                other[giver] -= moved
                other[taker] += moved
                assert end(other) >= end(shares)


def test_other_products_have_launches_of_their_own():
    stack = STACKS[0]
    assert choose_stacked(problems_of(stack[:1], 1), HOPPER) is None
    assert choose_stacked(problems_of(stack, 9), HOPPER) is None
    assert choose_stacked(problems_of((*stack, stack[-1]), 1), HOPPER) is None
    assert choose_stacked(problems_of([("q6_g64_fp16", (256, 320))] * 2, 1), HOPPER) is None
