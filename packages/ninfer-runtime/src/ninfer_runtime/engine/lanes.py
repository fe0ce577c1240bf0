"""The places of sequences that are executed together: a lane each, and its pages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ninfer_runtime.device.base import Device
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.engine.step_buffers import LaneFields
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.kv.pages import pages_for
from ninfer_runtime.sampling.params import Sampling

OP = "executor"


class PagePool:
    """Page numbers that no sequence has.

    Args:
        num_pages: Pages that there are.
    """

    def __init__(self, num_pages: int) -> None:
        self._free = list(range(num_pages))

    @property
    def free_pages(self) -> int:
        """How many pages are free."""
        return len(self._free)

    def take(self, count: int) -> tuple[int, ...] | None:
        """The `count` lowest free pages, ascending; None if there are fewer."""
        if count > len(self._free):
            return None
        taken, self._free = self._free[:count], self._free[count:]
        return tuple(taken)

    def give_back(self, pages: tuple[int, ...]) -> None:
        """Make pages free again."""
        self._free = sorted((*self._free, *pages))


@dataclass(eq=False, slots=True)
class Lane:
    """One sequence that is being executed.

    Attributes:
        index: Its table row, its slot and its row of counts.
        pages: Its pages, in the order of its tokens.
        capacity: Tokens that it may execute.
        length: Tokens that it has executed.
    """

    index: int
    pages: tuple[int, ...]
    capacity: int
    length: int = 0


class LaneTable:
    """All lanes, and what each has on the device beside its state.

    Args:
        device: Where sequences are executed.
        num_lanes: L.
        max_context: Longest sequence in tokens; there are pages for one such in each lane.
        vocab_size: V.

    Attributes:
        fields: What steps are told of each lane.
        tables: [L, W], int32: page numbers.
        counts: [L, V], int32: how often each token was generated, for penalties.
    """

    def __init__(
        self, device: Device, *, num_lanes: int, max_context: int, vocab_size: int
    ) -> None:
        self._device = device
        self._max_context = max_context
        width = pages_for(max_context)
        self._pages = PagePool(num_lanes * width)
        self._lanes: list[Lane | None] = [None] * num_lanes
        self.fields = LaneFields(num_lanes)
        self.tables = device.zeros((num_lanes, width), DType.INT32)
        self.counts = device.zeros((num_lanes, vocab_size), DType.INT32)

    @property
    def active(self) -> list[Lane]:
        """The sequences that are being executed."""
        return [lane for lane in self._lanes if lane is not None]

    def begin(self, capacity: int, sampling: Sampling) -> Lane:
        """Give a lane and pages to a new sequence.

        Raises:
            OpArgumentError: Every lane is taken, or the capacity is outside 1..`max_context`.
        """
        if not 1 <= capacity <= self._max_context:
            expected = f"1..{self._max_context} tokens"
            raise OpArgumentError(OP, "capacity", expected=expected, found=capacity)
        index = next((i for i, lane in enumerate(self._lanes) if lane is None), None)
        # There are pages for all lanes.
        pages = None if index is None else self._pages.take(pages_for(capacity))
        if index is None or pages is None:
            raise OpArgumentError(OP, "begin", expected="a free lane", found="none")
        table = np.zeros(self.tables.shape[1], np.int32)
        table[: len(pages)] = pages
        self._device.copy_in(table, self.tables[index : index + 1].reshape(-1))
        self.fields.begin(index, sampling)
        if sampling.params.has_penalties:
            self._device.clear(self.counts[index : index + 1])
        lane = Lane(index, pages, capacity)
        self._lanes[index] = lane
        return lane

    def end(self, lane: Lane) -> None:
        """Take lane and pages back.

        Raises:
            OpArgumentError: The sequence has ended.
        """
        self._check_active(lane)
        self._pages.give_back(lane.pages)
        self._lanes[lane.index] = None

    def check_room(self, lane: Lane, columns: int) -> None:
        """Refuse tokens that a device would write where they do not belong.

        Raises:
            OpArgumentError: The sequence has ended, or has no room for so many more tokens.
        """
        self._check_active(lane)
        room = lane.capacity - lane.length
        if columns > room:
            raise OpArgumentError(OP, "tokens", expected=f"at most {room} more", found=columns)

    def advance(self, lanes: tuple[Lane, ...], indices: np.ndarray, columns: int) -> None:
        """Count executed tokens of lanes, whose numbers are `indices`."""
        self.fields.advance(indices, columns)
        for lane in lanes:
            lane.length += columns

    def _check_active(self, lane: Lane) -> None:
        # Its pages may be another sequence's by now.
        if self._lanes[lane.index] is not lane:
            raise OpArgumentError(OP, "lane", expected="an active sequence", found=lane.index)
