"""Keys and values of one full attention layer."""

from __future__ import annotations

from math import prod

from ninfer_runtime.device.base import Device
from ninfer_runtime.device.dtypes import STORAGE, DType
from ninfer_runtime.device.tensor import Tensor

GROWTH_TOKENS = 256
"""Memory is taken in multiples of this many tokens, so that a short chat stays small."""


class KVCache:
    """Rotated keys and raw values, each [length, KH, HD], that grow with the sequence.

    Args:
        num_key_value_heads: KH.
        head_dim: HD.
        capacity: Tokens that the sequence may have at most.
        device: Where the cache lies.
        dtype: Element type.
    """

    def __init__(
        self,
        num_key_value_heads: int,
        head_dim: int,
        capacity: int,
        device: Device,
        dtype: DType = DType.FP32,
    ) -> None:
        self.length = 0
        self._capacity = capacity
        self._row = (num_key_value_heads, head_dim)
        self._device = device
        self._dtype = dtype
        self._keys = device.empty((0, *self._row), dtype)
        self._values = device.empty((0, *self._row), dtype)

    @property
    def num_bytes(self) -> int:
        """Bytes taken now."""
        return self._keys.num_bytes + self._values.num_bytes

    @property
    def largest_bytes(self) -> int:
        """Bytes taken when the capacity is reached."""
        return 2 * self._capacity * prod(self._row) * STORAGE[self._dtype].itemsize

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append T tokens.

        Args:
            key: [T, KH, HD], rotated; of the cache's dtype. The caller keeps within the capacity.
            value: As `key`, not rotated.

        Returns:
            Views of all keys and of all values, each [length, KH, HD]; valid until the next call.
        """
        begin, end = self.length, self.length + key.shape[0]
        if end > self._keys.shape[0]:
            self._grow(end)
        self._keys.array[begin:end] = key.array
        self._values.array[begin:end] = value.array
        self.length = end
        return self._keys[:end], self._values[:end]

    def _grow(self, needed: int) -> None:
        """Double the room, or more if that is needed, so that copying stays linear."""
        wanted = max(needed, 2 * self._keys.shape[0])
        tokens = max(needed, min(-(-wanted // GROWTH_TOKENS) * GROWTH_TOKENS, self._capacity))
        self._keys = self._moved(self._keys, tokens)
        self._values = self._moved(self._values, tokens)

    def _moved(self, old: Tensor, tokens: int) -> Tensor:
        new = self._device.empty((tokens, *self._row), self._dtype)
        new.array[: self.length] = old.array[: self.length]
        return new
