"""Slots that hold the states of one recurrent layer for many sequences."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ninfer_runtime.device.base import Device
from ninfer_runtime.device.dtypes import STORAGE, DType
from ninfer_runtime.ops.gated_delta_net import DeltaSlots

RING = 16
"""Records of a slot where an engine runs sequences: for the three tokens before the stored state that
a convolution of four taps reaches back to, and thirteen that are replayed or new."""


@dataclass(frozen=True, slots=True)
class DeltaGeometry:
    """Sizes of one Gated DeltaNet layer.

    Attributes:
        value_heads: VH.
        value_head_dim: DV.
        key_head_dim: DK.
        channels: CH, of the convolution.
    """

    value_heads: int
    value_head_dim: int
    key_head_dim: int
    channels: int

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """Of the state of a slot."""
        return self.value_heads, self.value_head_dim, self.key_head_dim

    @property
    def record_width(self) -> int:
        """Elements of a record."""
        return self.channels + 2 * self.value_heads


def new_slots(geometry: DeltaGeometry, num_slots: int, ring: int, device: Device) -> DeltaSlots:
    """Slots with undefined content; a sequence at position 0 reads none of it."""
    return DeltaSlots(
        state=device.empty((num_slots, *geometry.state_shape), DType.FP32),
        records=device.empty((num_slots, ring, geometry.record_width), device.activation_dtype),
    )


def slot_bytes(geometry: DeltaGeometry, ring: int, device: Device) -> int:
    """Bytes of one slot of `new_slots`."""
    state = prod(geometry.state_shape) * STORAGE[DType.FP32].itemsize
    return state + ring * geometry.record_width * STORAGE[device.activation_dtype].itemsize
