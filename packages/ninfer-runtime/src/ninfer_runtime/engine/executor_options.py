"""How a model is executed, and how much state that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from ninfer_runtime.kv.formats import KVFormat
from ninfer_runtime.kv.pages import pages_for
from ninfer_runtime.kv.slots import RING

MAX_LANES = 8
"""Sequences that are executed together at most: the ops' workspace is made for them."""


class StateSizes(TypedDict):
    """Arguments of `ninfer_runtime.models.architecture.LanguageModel.new_state`."""

    num_pages: int
    num_slots: int
    ring: int
    kv_format: KVFormat


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """How a model is executed.

    Attributes:
        kv_format: How keys and values are stored.
        max_context: Longest sequence in tokens.
        public_tokens: Only ids below this are chosen.
        lanes: Sequences at the same time, up to `MAX_LANES`.
        prefill_chunk: Most tokens of a prompt that are executed at a time.
        use_graphs: Whether steps of one token are recorded on devices that can.
    """

    kv_format: KVFormat
    max_context: int
    public_tokens: int
    lanes: int = 1
    prefill_chunk: int = 1024
    use_graphs: bool = True

    @property
    def num_pages(self) -> int:
        """Pages for all lanes at their full length."""
        return self.lanes * pages_for(self.max_context)

    @property
    def state_sizes(self) -> StateSizes:
        """What `LanguageModel.new_state` is asked for."""
        return {
            "num_pages": self.num_pages,
            "num_slots": self.lanes,
            "ring": RING,
            "kv_format": self.kv_format,
        }
