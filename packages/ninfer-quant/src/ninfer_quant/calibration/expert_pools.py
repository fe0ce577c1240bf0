"""Experts that saw too few tokens: the others of their layer stand in for what is missing.

A router may send few tokens of a corpus to an expert, or none. The second moments of K/8 tokens say
little about K columns, so an expert with fewer borrows K/8 average tokens from all experts of its
layer together.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ninfer_quant.calibration.input_sums import InputSums

_EXPERT = re.compile(r"(.*/experts/)\d+(/.*)")
_ENOUGH = 1 / 8
"""Tokens for each column that an expert needs to stand alone."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many experts a corpus has reached.

    Attributes:
        experts: All experts.
        experts_without_tokens: Those that saw no token.
        experts_with_few_tokens: Those that saw some, but fewer than K/8.
    """

    experts: int = 0
    experts_without_tokens: int = 0
    experts_with_few_tokens: int = 0

    def __add__(self, other: Coverage) -> Coverage:
        """Count both."""
        return Coverage(
            self.experts + other.experts,
            self.experts_without_tokens + other.experts_without_tokens,
            self.experts_with_few_tokens + other.experts_with_few_tokens,
        )


def fill_in_experts(
    sums: dict[str, InputSums], expected: Mapping[str, int], *, keeps_hessian: bool
) -> Coverage:
    """Complete the sums of experts with few tokens, and add those of experts with none.

    Args:
        sums: Sums by input; changed.
        expected: Names and widths K of all inputs that there should be.
        keeps_hessian: Whether products between columns are summed.

    Returns:
        How many experts there are and had to be helped.
    """
    pools = defaultdict(list)
    for name in expected:
        found = _EXPERT.fullmatch(name)
        if found is not None:
            pools[found.groups()].append(name)
    coverage = Coverage()
    for names in pools.values():
        coverage += _fill_in_pool(sums, {name: expected[name] for name in names}, keeps_hessian)
    return coverage


def _fill_in_pool(
    sums: dict[str, InputSums], expected: Mapping[str, int], keeps_hessian: bool
) -> Coverage:
    seen = [sums[name] for name in expected if name in sums]
    if not seen:
        return Coverage(experts=len(expected), experts_without_tokens=len(expected))
    K = next(iter(expected.values()))
    pool = InputSums(K, keeps_hessian=keeps_hessian)
    for item in seen:
        pool.borrow(item, item.rows)
    without = [name for name in expected if name not in sums]
    few = [name for name in expected if name in sums and sums[name].rows < _ENOUGH * K]
    for name in (*without, *few):
        own = sums.setdefault(name, InputSums(K, keeps_hessian=keeps_hessian))
        own.borrow(pool, _ENOUGH * K)
    return Coverage(len(expected), len(without), len(few))
