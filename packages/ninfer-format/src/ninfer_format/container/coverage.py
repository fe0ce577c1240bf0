"""Which bytes of an object have been written."""

from __future__ import annotations

from bisect import bisect_right


class Coverage:
    """A set of disjoint byte ranges that grows and never overlaps itself.

    Adjacent ranges are merged, so sequential writing keeps one range.
    """

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, begin: int, end: int) -> bool:
        """Add [begin, end) unless a byte of it is there already; returns whether it was added."""
        index = bisect_right(self._begins, begin)
        if index and self._ends[index - 1] > begin:
            return False
        if index < len(self._begins) and self._begins[index] < end:
            return False
        if index and self._ends[index - 1] == begin:
            index -= 1
            self._ends[index] = end
        else:
            self._begins.insert(index, begin)
            self._ends.insert(index, end)
        if index + 1 < len(self._begins) and self._begins[index + 1] == end:
            self._ends[index] = self._ends.pop(index + 1)
            del self._begins[index + 1]
        return True

    def first_hole(self, size: int) -> tuple[int, int] | None:
        """The first range of [0, size) that is missing, or None if there is none."""
        if not self._begins:
            return (0, size)
        if self._begins[0] > 0:
            return (0, self._begins[0])
        if self._ends[0] < size:
            return (self._ends[0], self._begins[1] if len(self._begins) > 1 else size)
        return None
