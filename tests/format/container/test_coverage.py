from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ninfer_format.container.coverage import Coverage

SIZE = 24
RANGES = st.tuples(st.integers(0, SIZE - 1), st.integers(1, SIZE)).map(
    lambda pair: (pair[0], min(SIZE, pair[0] + pair[1]))
)


@given(st.lists(RANGES, max_size=30))
def test_coverage_agrees_with_a_set_of_bytes(ranges: list[tuple[int, int]]) -> None:
    coverage = Coverage()
    covered: set[int] = set()
    for begin, end in ranges:
        added = set(range(begin, end))
        assert coverage.add(begin, end) == covered.isdisjoint(added)
        if covered.isdisjoint(added):
            covered |= added
    hole = coverage.first_hole(SIZE)
    missing = sorted(set(range(SIZE)) - covered)
    if not missing:
        assert hole is None
    else:
        assert hole is not None
        begin, end = hole
        assert begin == missing[0]
        assert set(range(begin, end)) <= set(missing)
        assert end == SIZE or end in covered
