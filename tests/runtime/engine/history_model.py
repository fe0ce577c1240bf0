"""A model whose logits depend on every token before, so that a lost or repeated one shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ninfer_runtime.device import DType, Tensor, get_device
from ninfer_runtime.engine.executor import Executor
from ninfer_runtime.engine.executor_options import ExecutorOptions
from ninfer_runtime.kv.formats import FP32, KVFormat
from ninfer_runtime.kv.pages import PAGE_TOKENS
from ninfer_runtime.kv.state import ModelState
from ninfer_runtime.models.step import Step

V = 11
PUBLIC = 9
CONTEXT = 1000


@dataclass
class Pool:
    """Tokens in pages, or the number of tokens in slots."""

    values: np.ndarray
    num_bytes: int


def history_row(tokens):
    seed = [len(tokens), *map(int, tokens)]
    return np.random.default_rng(seed).normal(size=V).astype(np.float32)


class HistoryModel:
    """Keeps the tokens themselves in its pages, and counts them in its slots."""

    vocab_size = V
    max_position_embeddings = CONTEXT
    weight_bytes = 4321

    def __init__(self) -> None:
        self.device = get_device("cpu")
        self.shapes: list[tuple[int, int]] = []
        self.logit_rows: list[int] = []

    def state_bytes(self, *, num_pages, num_slots, ring, kv_format):
        return 100 * num_pages + 7 * num_slots

    def new_state(
        self, *, num_pages: int, num_slots: int, ring: int, kv_format: KVFormat
    ) -> ModelState:
        pages = Pool(np.full(num_pages * PAGE_TOKENS, -1), 100 * num_pages)
        slots = Pool(np.full(num_slots, -1), 7 * num_slots)
        return ModelState(cast(Any, (pages,)), cast(Any, (slots,)))

    def forward(self, step: Step, state: ModelState) -> Tensor:
        self.shapes.append(step.shape)
        pages, slots = cast(Any, state.pages[0]).values, cast(Any, state.slots[0]).values
        spans, delta = step.spans, step.delta
        rows = np.full((*step.shape, V), np.nan, np.float32)
        for b in range(step.shape[0]):
            begin, columns = spans.before.array[b], spans.columns.array[b]
            slot = delta.source.array[b]
            assert delta.position.array[b] == begin
            assert (delta.destination.array[b], delta.replayed.array[b]) == (slot, 0)
            assert begin == 0 or slots[slot] == begin
            slots[slot] = begin + columns
            table = spans.tables.array[spans.table_rows.array[b]]
            positions = step.positions.array.reshape(3, *step.shape)[:, b, :columns]
            assert (positions == begin + np.arange(columns)).all()
            places = np.arange(begin + columns)
            places = table[places // PAGE_TOKENS] * PAGE_TOKENS + places % PAGE_TOKENS
            pages[places[begin:]] = step.token_ids.array[b, :columns]
            for c in range(columns):
                rows[b, c] = history_row(pages[places[: begin + c + 1]])
        return self.device.from_host(rows.reshape(-1, V))

    def logits(self, hidden: Tensor) -> Tensor:
        self.logit_rows.append(hidden.shape[0])
        assert hidden.dtype is DType.FP32
        return hidden


def executor_of(model: Any = None, chunk: int = 128, lanes: int = 1, **options: Any) -> Executor:
    """An executor, ready, of a new history model by default."""
    executor = Executor(
        model or HistoryModel(),
        ExecutorOptions(
            kv_format=FP32,
            max_context=options.pop("max_context", CONTEXT),
            public_tokens=PUBLIC,
            lanes=lanes,
            prefill_chunk=chunk,
            **options,
        ),
    )
    executor.record()
    return executor
