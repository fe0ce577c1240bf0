"""What one execution of a text model is told."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ninfer_runtime.device.base import Device
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.gated_delta_net import DeltaSteps
from ninfer_runtime.ops.paged_arguments import Spans


@dataclass(frozen=True, slots=True)
class Step:
    """New tokens of B sequences, C ≥ 1 at most of each; everything lies on the device.

    Attributes:
        token_ids: [B, C], int32: the new tokens; in the columns that a sequence does not have stands
            any valid id.
        positions: [3, B·C], int32: their positions on the three rotary axes, equal for text.
        spans: Where they stand in the pages of the attention layers.
        delta: What they do to the slots of the recurrent layers.
    """

    token_ids: Tensor
    positions: Tensor
    spans: Spans
    delta: DeltaSteps

    @property
    def shape(self) -> tuple[int, int]:
        """B, and C: new tokens of a sequence at most."""
        B, C = self.token_ids.shape
        return B, C


@dataclass(frozen=True, slots=True)
class Place:
    """Where the state of one sequence lies.

    Attributes:
        pages: Its page numbers, in the order of its tokens.
        before: Tokens that it has executed.
        source: The slot that holds its recurrent state.
        destination: The slot that shall hold it, None for the same.
    """

    pages: tuple[int, ...]
    before: int = 0
    source: int = 0
    destination: int | None = None


def text_step(device: Device, token_ids: list[np.ndarray], places: list[Place]) -> Step:
    """Make the step that executes new text tokens of some sequences and keeps all of them.

    Args:
        device: Where the step shall lie.
        token_ids: The new tokens of each sequence, integers [its columns].
        places: Where the state of each lies.
    """
    B, C = len(token_ids), max(map(len, token_ids))
    columns = np.array([len(ids) for ids in token_ids], np.int32)
    before = np.array([place.before for place in places], np.int32)
    ids = np.zeros((B, C), np.int32)
    tables = np.zeros((B, max(len(place.pages) for place in places)), np.int32)
    for b, place in enumerate(places):
        ids[b, : columns[b]] = token_ids[b]
        tables[b, : len(place.pages)] = place.pages
    positions = (before[:, None] + np.arange(C, dtype=np.int32)).reshape(-1)
    sources = [place.source for place in places]
    destinations = [
        place.source if place.destination is None else place.destination for place in places
    ]

    def each(values: object) -> Tensor:
        return device.from_host(np.array(values, np.int32))

    return Step(
        token_ids=each(ids),
        positions=each(np.tile(positions, (3, 1))),
        spans=Spans(each(tables), each(np.arange(B)), each(before), each(columns)),
        delta=DeltaSteps(
            source=each(sources),
            destination=each(destinations),
            position=each(before),
            replayed=each(np.zeros(B)),
            columns=each(columns),
            committed=each(columns),
        ),
    )
