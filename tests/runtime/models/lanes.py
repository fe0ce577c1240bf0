"""Several sequences in one state, whose pages and slots lie among each other in no order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tests.runtime.models.sequences import logits_of

from ninfer_runtime.device import Device, Tensor
from ninfer_runtime.device.dtypes import STORAGE
from ninfer_runtime.kv.formats import FP32, KVFormat
from ninfer_runtime.kv.pages import KVPages, RowPlanes
from ninfer_runtime.kv.slots import RING
from ninfer_runtime.kv.state import ModelState
from ninfer_runtime.models.architecture import LanguageModel
from ninfer_runtime.models.step import Place, text_step
from ninfer_runtime.ops.gated_delta_net import DeltaSlots

PAGES, SLOTS = 12, 5
LENGTHS = (150, 90, 130)
POISON_BYTE = 0xFF
"""Of fp32, bf16 and fp16 a NaN."""


class Lane:
    """A sequence.

    Attributes:
        ids: All its tokens.
        pages: Its page numbers.
        slot: Its slot.
        length: Tokens executed so far.
        logits: Those after each of them, step by step.
    """

    def __init__(self, ids: np.ndarray, pages: tuple[int, ...], slot: int) -> None:
        self.ids, self.pages, self.slot = ids, pages, slot
        self.length = 0
        self.logits: list[np.ndarray] = []

    def place(self, destination: int | None = None) -> Place:
        return Place(self.pages, self.length, self.slot, destination)


class Lanes:
    """Three sequences of a state that starts full of NaN: nobody reads what nobody wrote."""

    def __init__(self, model: LanguageModel, kv_format: KVFormat = FP32) -> None:
        rng = np.random.default_rng(6)
        self.model = model
        self.state = poisoned_state(model, kv_format)
        pages = rng.permutation(PAGES).tolist()
        slots = rng.permutation(SLOTS).tolist()
        self.lanes = [
            Lane(
                rng.integers(0, model.vocab_size, count),
                tuple(pages[3 * index : 3 * index + 3]),
                slots[index],
            )
            for index, count in enumerate(LENGTHS)
        ]
        self.free_slot = slots[3]

    def advance(self, counts: dict[int, int]) -> None:
        """Execute the next tokens of some lanes, all in one step."""
        chosen = [self.lanes[index] for index in counts]
        ids = [
            lane.ids[lane.length : lane.length + count]
            for lane, count in zip(chosen, counts.values(), strict=True)
        ]
        if not any(map(len, ids)):  # all of them are at their ends
            return
        step = text_step(self.model.device, ids, [lane.place() for lane in chosen])
        rows = logits_of(self.model, self.model.forward(step, self.state))
        for b, lane in enumerate(chosen):
            lane.logits.append(rows.reshape(*step.shape, -1)[b, : len(ids[b])])
            lane.length += len(ids[b])

    def compare(
        self,
        alone: Callable[[np.ndarray], np.ndarray],
        check: Callable[[np.ndarray, np.ndarray], None],
    ) -> None:
        """Check the logits of every lane against those that its tokens give `alone`."""
        for lane in self.lanes:
            if lane.length:
                check(np.concatenate(lane.logits), alone(lane.ids[: lane.length]))


def poisoned_state(model: LanguageModel, kv_format: KVFormat) -> ModelState:
    """A state of NaN."""
    state = model.new_state(num_pages=PAGES, num_slots=SLOTS, ring=RING, kv_format=kv_format)

    def planes(side: RowPlanes) -> RowPlanes:
        return RowPlanes(side.format, *(poisoned(model.device, each) for each in side.tensors))

    return ModelState(
        tuple(KVPages(each.format, planes(each.key), planes(each.value)) for each in state.pages),
        tuple(
            DeltaSlots(poisoned(model.device, each.state), poisoned(model.device, each.records))
            for each in state.slots
        ),
    )


def poisoned(device: Device, tensor: Tensor) -> Tensor:
    words = np.empty(tensor.shape, STORAGE[tensor.dtype])
    words.view(np.uint8)[...] = POISON_BYTE
    return device.from_host(words, tensor.dtype)


def own_parts(state: ModelState, lane: Lane) -> list[np.ndarray]:
    """Copies of everything that belongs to a lane of a state on the CPU."""
    pages = [each.array[list(lane.pages)] for layer in state.pages for each in layer.tensors]
    slots = [
        each.array[lane.slot] for layer in state.slots for each in (layer.records, layer.state)
    ]
    return [each.copy() for each in pages + slots]
