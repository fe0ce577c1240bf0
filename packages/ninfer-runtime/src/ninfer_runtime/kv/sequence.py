"""State of one sequence of a model with attention and recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence

from ninfer_runtime.kv.cache import KVCache
from ninfer_runtime.kv.recurrent import DeltaNetState


class HybridState:
    """Implements `ninfer_runtime.models.architecture.SequenceState`.

    Args:
        capacity: Tokens that fit.
        caches: One for each full attention layer, in layer order.
        recurrent: One for each recurrent layer, in layer order.

    Attributes:
        length: Tokens executed so far; the model advances it.
    """

    def __init__(
        self, capacity: int, caches: Sequence[KVCache], recurrent: Sequence[DeltaNetState]
    ) -> None:
        self.length = 0
        self.capacity = capacity
        self.caches = tuple(caches)
        self.recurrent = tuple(recurrent)

    @property
    def num_bytes(self) -> int:
        """Bytes taken now."""
        caches = sum(cache.num_bytes for cache in self.caches)
        return caches + sum(state.num_bytes for state in self.recurrent)

    @property
    def largest_bytes(self) -> int:
        """Bytes taken when `capacity` is reached."""
        caches = sum(cache.largest_bytes for cache in self.caches)
        return caches + sum(state.num_bytes for state in self.recurrent)
