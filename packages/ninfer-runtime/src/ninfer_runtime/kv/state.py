"""What the sequences of a model leave behind for their next tokens."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_runtime.kv.pages import KVPages
from ninfer_runtime.ops.gated_delta_net import DeltaSlots


@dataclass(frozen=True, slots=True)
class ModelState:
    """Memory for many sequences, one pool for each layer.

    A page number stands for the same tokens in every attention layer, and a slot number for the same
    sequence in every recurrent layer.

    Attributes:
        pages: Of each full attention layer, in layer order.
        slots: Of each recurrent layer, in layer order.
    """

    pages: tuple[KVPages, ...]
    slots: tuple[DeltaSlots, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes taken."""
        pages = sum(each.num_bytes for each in self.pages)
        return pages + sum(each.num_bytes for each in self.slots)
