from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_quant.quality.allocation import Choice, allocate, lower_hull

choices = st.lists(
    st.builds(Choice, st.integers(1, 40), st.integers(0, 60).map(float)), min_size=1, max_size=5
)
items = st.lists(choices, min_size=1, max_size=4)


def all_selections(items):
    for chosen in product(*items):
        yield sum(choice.num_bytes for choice in chosen), sum(choice.error for choice in chosen)


def best_error(items, limit):
    """The least error of all selections that fit, by trying every one; None if none fits."""
    return min((error for size, error in all_selections(items) if size <= limit), default=None)


@given(items, st.integers(0, 160))
def test_the_limit_is_never_exceeded_and_totals_are_right(items, limit):
    found = allocate(items, limit)
    if found is None:
        assert best_error(items, limit) is None
        return
    taken = [options[index] for options, index in zip(items, found.chosen, strict=True)]
    assert found.num_bytes == sum(choice.num_bytes for choice in taken) <= limit
    assert found.error == sum(choice.error for choice in taken)


@given(items, st.integers(0, 160))
def test_no_selection_of_the_same_size_is_better_by_more_than_one_step(items, limit):
    """What greedy may lose is known: less than the step that did not fit would have saved."""
    found = allocate(items, limit)
    if found is None:
        return
    steps = [
        options[small].error - options[large].error
        for options in items
        for hull in [lower_hull(options)]
        for small, large in pairwise(hull)
    ]
    best = best_error(items, limit)
    assert best is not None
    assert best <= found.error <= best + max(steps, default=0)


@given(items)
def test_a_limit_at_a_step_gets_the_best_of_all_selections(items):
    """Whatever the sizes that greedy passes on its way, nothing that fits there is better."""
    hulls = [[options[index] for index in lower_hull(options)] for options in items]
    slopes = sorted(
        (
            ((small.error - large.error) / (large.num_bytes - small.num_bytes), item, step)
            for item, hull in enumerate(hulls)
            for step, (small, large) in enumerate(pairwise(hull))
        ),
        key=lambda entry: (-entry[0], entry[1], entry[2]),
    )
    positions = [0] * len(items)
    visited = [list(positions)]
    for _, item, step in slopes:
        positions[item] = step + 1
        visited.append(list(positions))
    for places in visited:
        size = sum(hull[place].num_bytes for hull, place in zip(hulls, places, strict=True))
        found = allocate(items, size)
        assert found is not None
        assert found.error == best_error(items, size)


@given(items, st.integers(0, 160))
def test_nothing_that_is_left_would_still_fit(items, limit):
    found = allocate(items, limit)
    if found is None:
        return
    for options, index in zip(items, found.chosen, strict=True):
        for choice in options:
            grown = found.num_bytes - options[index].num_bytes + choice.num_bytes
            assert choice.error >= options[index].error or grown > limit


@pytest.mark.parametrize(
    ("sizes_and_errors", "expected"),
    [
        ([(4, 9.0)], [0]),
        ([(4, 9.0), (5, 9.0)], [0]),
        ([(5, 1.0), (4, 9.0)], [1, 0]),
        ([(4, 9.0), (4, 7.0), (8, 0.0)], [1, 2]),
        # The middle one lies above the line between its neighbours.
        ([(4, 8.0), (6, 7.0), (8, 0.0)], [0, 2]),
        ([(4, 8.0), (6, 2.0), (8, 0.0)], [0, 1, 2]),
        ([(4, 8.0), (6, 4.0), (8, 0.0)], [0, 2]),
    ],
)
def test_the_hull_has_what_is_worth_its_size(sizes_and_errors, expected):
    assert lower_hull([Choice(*pair) for pair in sizes_and_errors]) == expected
