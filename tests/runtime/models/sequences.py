"""One sequence of a model at a time, as tests and not engines run it."""

from __future__ import annotations

from collections.abc import Sequence as Several
from itertools import pairwise

import numpy as np

from ninfer_runtime.device import Tensor
from ninfer_runtime.kv.formats import FP32, KVFormat
from ninfer_runtime.kv.pages import PAGE_TOKENS
from ninfer_runtime.kv.slots import RING
from ninfer_runtime.models.architecture import LanguageModel
from ninfer_runtime.models.step import Place, text_step

BF16_ERROR = 0.05
"""Of a row of logits: root mean square in standard deviations. Some fifty roundings to bf16 (2^-9 each)
lie on the way of eight layers and are amplified by them; a row that belongs elsewhere gives 1.4."""


class Sequence:
    """A sequence alone in a state of its own.

    Attributes:
        length: Tokens executed so far.
    """

    def __init__(self, model: LanguageModel, capacity: int, kv_format: KVFormat = FP32) -> None:
        self.model = model
        self.pages = tuple(range(-(-capacity // PAGE_TOKENS)))
        self.state = model.new_state(
            num_pages=len(self.pages), num_slots=1, ring=RING, kv_format=kv_format
        )
        self.length = 0

    def forward(self, token_ids: Several[int] | np.ndarray) -> Tensor:
        """Execute the next tokens; hidden rows [T, D]."""
        place = Place(self.pages, before=self.length)
        step = text_step(self.model.device, [np.asarray(token_ids)], [place])
        self.length += len(token_ids)
        return self.model.forward(step, self.state)

    def logits(self, token_ids: Several[int] | np.ndarray) -> np.ndarray:
        """Execute the next tokens; logits [T, V] after each of them."""
        return logits_of(self.model, self.forward(token_ids))


def logits_of(model: LanguageModel, hidden: Tensor) -> np.ndarray:
    """Logits [T, V] of hidden rows, on the host."""
    return model.device.to_host(model.logits(hidden))


def run(
    model: LanguageModel, token_ids: Several[int] | np.ndarray, bounds: list[int]
) -> np.ndarray:
    """Logits of all positions of a sequence that is executed in parts."""
    sequence = Sequence(model, len(token_ids))
    parts = [sequence.logits(token_ids[begin:end]) for begin, end in pairwise(bounds)]
    return np.concatenate(parts)


def row_errors(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Root mean square of the error of each row of logits, in standard deviations of all."""
    return np.asarray(np.sqrt(np.square(found - expected).mean(axis=1)) / expected.std())
