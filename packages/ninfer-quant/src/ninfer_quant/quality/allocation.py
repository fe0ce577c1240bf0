"""Choosing one of several sizes for every item so that all together are as good as they can be.

Every item has choices of a size and an error. From the smallest choices on, the step is taken that
saves the most error for a byte, as long as it fits. Steps follow the lower convex hull of an
item's choices, so that along the way no selection of the same size has less error; what room is
left in the end goes to whatever still fits.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to store an item.

    Attributes:
        num_bytes: What it takes.
        error: What it costs in quality; errors of items add up.
    """

    num_bytes: int
    error: float


@dataclass(frozen=True, slots=True)
class Allocation:
    """What was chosen.

    Attributes:
        chosen: Index of the choice of every item.
        num_bytes: Their size together.
        error: Their error together.
        last_gain: Error saved for a byte by the last step on a hull; None if there was none. All
            steps that save more were taken, if there was room.
    """

    chosen: tuple[int, ...]
    num_bytes: int
    error: float
    last_gain: float | None


def allocate(items: Sequence[Sequence[Choice]], limit: int) -> Allocation | None:
    """Choose for every item.

    Args:
        items: The choices of every item, at least one each, in any order.
        limit: Most bytes of all together.

    Returns:
        The allocation, None if not even the smallest choices fit.
    """
    hulls = [lower_hull(choices) for choices in items]
    positions = [0] * len(items)
    num_bytes = sum(choices[hull[0]].num_bytes for choices, hull in zip(items, hulls, strict=True))
    if num_bytes > limit:
        return None
    last_gain = None
    steps = [
        (-_gain(items[item], hulls[item], 0), item)
        for item in range(len(items))
        if len(hulls[item]) > 1
    ]
    heapq.heapify(steps)
    while steps:
        negative_gain, item = heapq.heappop(steps)
        choices, hull = items[item], hulls[item]
        before, after = (choices[hull[positions[item] + step]] for step in (0, 1))
        if num_bytes + after.num_bytes - before.num_bytes > limit:
            continue  # The further steps of this item need even more room.
        num_bytes += after.num_bytes - before.num_bytes
        positions[item] += 1
        last_gain = -negative_gain
        if positions[item] + 1 < len(hull):
            heapq.heappush(steps, (-_gain(choices, hull, positions[item]), item))
    chosen = [hull[position] for hull, position in zip(hulls, positions, strict=True)]
    _fill(items, chosen, limit - num_bytes)
    taken = [choices[index] for choices, index in zip(items, chosen, strict=True)]
    return Allocation(
        tuple(chosen),
        sum(choice.num_bytes for choice in taken),
        sum(choice.error for choice in taken),
        last_gain,
    )


def lower_hull(choices: Sequence[Choice]) -> list[int]:
    """Indices of the choices on the lower convex hull, by size; each is better than those before.

    The first is the smallest choice (of several, the best of them).
    """
    order = sorted(range(len(choices)), key=lambda i: (choices[i].num_bytes, choices[i].error, i))
    hull: list[int] = []
    for index in order:
        if hull and choices[index].error >= choices[hull[-1]].error:
            continue
        while len(hull) > 1 and _slope(choices, hull[-2], hull[-1]) <= _slope(
            choices, hull[-2], index
        ):
            hull.pop()
        hull.append(index)
    return hull


def _gain(choices: Sequence[Choice], hull: Sequence[int], position: int) -> float:
    return _slope(choices, hull[position], hull[position + 1])


def _slope(choices: Sequence[Choice], small: int, large: int) -> float:
    """Error saved for a byte; sizes differ, because of equal ones only the best is on a hull."""
    saved = choices[small].error - choices[large].error
    return saved / (choices[large].num_bytes - choices[small].num_bytes)


def _fill(items: Sequence[Sequence[Choice]], chosen: list[int], room: int) -> None:
    """Change single choices for the better while any fits, the largest saving first."""
    while True:
        best = None
        for item, choices in enumerate(items):
            current = choices[chosen[item]]
            for index, choice in enumerate(choices):
                saved = current.error - choice.error
                needed = choice.num_bytes - current.num_bytes
                if saved > 0 and needed <= room and (best is None or saved > best[0]):
                    best = (saved, item, index, needed)
        if best is None:
            return
        _, item, chosen[item], needed = best
        room -= needed
