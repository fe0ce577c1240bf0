"""What changes from step to step: one block of words, filled on the host and sent at once.

The fields of a step lie in the block at offsets that depend on its shape only, so that a captured
graph reads each at the address it was recorded with.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ninfer_runtime.device.base import Device
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.models.step import Step
from ninfer_runtime.ops.gated_delta_net import DeltaSteps
from ninfer_runtime.ops.paged_arguments import Spans
from ninfer_runtime.ops.sample import SamplingRows
from ninfer_runtime.sampling.params import Sampling
from ninfer_runtime.sampling.random import Purpose

_STEP_FIELDS = ("table_row", "before", "columns", "source", "destination", "replayed")
_INTEGER_FIELDS = ("top_k", "position", "purpose", "counts_row", "mask_row", "returned_place")
_FLOAT_FIELDS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty")
_ROWS = {name: row for row, name in enumerate((*_STEP_FIELDS, *_INTEGER_FIELDS, *_FLOAT_FIELDS))}
_SEED_WORDS = 2

NONE = -1
"""No row of counts, or of masks."""


class LaneFields:
    """The fields of every lane on the host.

    Args:
        num_lanes: L.
    """

    def __init__(self, num_lanes: int) -> None:
        self.words = np.zeros((len(_ROWS), num_lanes), np.int32)
        self.seeds = np.zeros((num_lanes, _SEED_WORDS), np.int32)
        # A lane has the table row and the slot of its number, and what is executed is kept.
        for name in ("table_row", "source", "destination"):
            self._row(name)[:] = np.arange(num_lanes)
        for name in ("counts_row", "mask_row"):
            self._row(name)[:] = NONE

    def begin(self, lane: int, sampling: Sampling) -> None:
        """Set a lane for a sequence of no tokens yet."""
        params = sampling.params
        self._row("before")[lane] = 0
        self._row("top_k")[lane] = params.top_k
        self._row("counts_row")[lane] = lane if params.has_penalties else NONE
        for name in _FLOAT_FIELDS:
            self._row(name).view(np.float32)[lane] = getattr(params, name)
        self.seeds[lane] = np.array([sampling.seed], np.uint64).view(np.int32)

    def set_step(self, columns: int, purpose: Purpose) -> None:
        """Set what the next step is, for all lanes."""
        self._row("columns")[:] = columns
        np.add(self._row("before"), columns - 1, out=self._row("position"))
        self._row("purpose")[:] = purpose

    def advance(self, lanes: np.ndarray, columns: int) -> None:
        """Count executed tokens."""
        self._row("before")[lanes] += columns

    def before(self, lanes: np.ndarray) -> np.ndarray:
        """Tokens that lanes have executed."""
        before: np.ndarray = self._row("before")[lanes]
        return before

    def _row(self, name: str) -> np.ndarray:
        row: np.ndarray = self.words[_ROWS[name]]
        return row


class StepBuffers:
    """Steps of B sequences with at most so many new tokens each.

    Args:
        device: Where steps are executed.
        B: Sequences of a step.
        columns: Most new tokens of a sequence in one step.
        tables: [L, W], int32: page numbers of L lanes.
        counts: [L, V], int32: generated tokens of the lanes, for penalties.
        masks: [M, ⌈V/32⌉], int32: allowed tokens.
        returned: [N], int32: where chosen tokens are returned to the host.
    """

    def __init__(
        self,
        device: Device,
        B: int,
        columns: int,
        *,
        tables: Tensor,
        counts: Tensor,
        masks: Tensor,
        returned: Tensor,
    ) -> None:
        self.B = B
        self._device = device
        self._tables, self._counts, self._masks = tables, counts, masks
        self._returned = returned
        *_, num_words = _borders(B, columns)
        self._block = device.empty((num_words,), DType.INT32)
        self._host = np.empty(num_words, np.int32)
        self._last_step: tuple[int, Step] | None = None

    def send(
        self, fields: LaneFields, lanes: np.ndarray, token_ids: np.ndarray, returned_place: int
    ) -> None:
        """Queue a step's words for the device.

        Args:
            fields: Of all lanes, set for this step.
            lanes: Numbers of the lanes [B].
            token_ids: Their new tokens [B, C], of text.
            returned_place: Element of `returned` for the first of the tokens that are chosen.
        """
        B, C = token_ids.shape
        fields_begin, ids, positions, end = _borders(B, C)
        words = self._host[:end]
        words[:fields_begin].reshape(B, _SEED_WORDS)[...] = fields.seeds[lanes]
        rows = words[fields_begin:ids].reshape(-1, B)
        rows[...] = fields.words[:, lanes]
        rows[_ROWS["returned_place"]] = np.arange(returned_place, returned_place + B)
        words[ids:positions].reshape(B, C)[...] = token_ids
        new = fields.before(lanes)[:, None] + np.arange(C, dtype=np.int32)
        words[positions:].reshape(3, B, C)[...] = new
        self._device.copy_in(words, self._block[:end])

    def step(self, C: int) -> Step:
        """The step of C columns as a model takes it: views of what is sent."""
        if self._last_step is None or self._last_step[0] != C:
            self._last_step = C, self._views(C)
        return self._last_step[1]

    @cached_property
    def counts_row(self) -> Tensor:
        """[B], int32: row of counts of each sequence."""
        return self._field("counts_row")

    @cached_property
    def sampling_rows(self) -> SamplingRows:
        """How the token after the last column of each sequence is chosen: views of what is sent."""
        return SamplingRows(
            **{name: self._field(name) for name in (*_INTEGER_FIELDS, *_FLOAT_FIELDS)},
            seed=self._block[: _SEED_WORDS * self.B].reshape(self.B, _SEED_WORDS),
            counts=self._counts,
            masks=self._masks,
            returned=self._returned,
        )

    def _views(self, C: int) -> Step:
        _, ids, positions, end = _borders(self.B, C)
        return Step(
            token_ids=self._block[ids:positions].reshape(self.B, C),
            positions=self._block[positions:end].reshape(3, self.B * C),
            spans=Spans(
                self._tables,
                self._field("table_row"),
                self._field("before"),
                self._field("columns"),
            ),
            delta=DeltaSteps(
                source=self._field("source"),
                destination=self._field("destination"),
                position=self._field("before"),
                replayed=self._field("replayed"),
                columns=self._field("columns"),
                committed=self._field("columns"),
            ),
        )

    def _field(self, name: str) -> Tensor:
        begin = (_SEED_WORDS + _ROWS[name]) * self.B
        words = self._block[begin : begin + self.B]
        if name in _FLOAT_FIELDS:
            return Tensor(words.array.view(np.float32), DType.FP32, self._device)
        return words


def _borders(B: int, C: int) -> tuple[int, int, int, int]:
    """Where in a block the fields begin, the token ids, their positions, and where it ends.

    The seeds are first: they are read as words of 64 bits.
    """
    fields = _SEED_WORDS * B
    ids = fields + len(_ROWS) * B
    positions = ids + B * C
    return fields, ids, positions, positions + 3 * B * C
