"""Fixed-size state of one Gated DeltaNet layer."""

from __future__ import annotations

from ninfer_runtime.device.base import Device
from ninfer_runtime.device.dtypes import DType


class DeltaNetState:
    """The inputs that the convolution still needs, and the matrix of each value head.

    Args:
        conv_kernel_dim: J, taps of the convolution.
        conv_channels: C.
        num_value_heads: VH.
        value_head_dim: DV.
        key_head_dim: DK.
        device: Where the state lies.

    Attributes:
        history: [J-1, C], fp32: the last inputs of the convolution, oldest first.
        recurrent: [VH, DV, DK], fp32.
    """

    def __init__(
        self,
        conv_kernel_dim: int,
        conv_channels: int,
        num_value_heads: int,
        value_head_dim: int,
        key_head_dim: int,
        device: Device,
    ) -> None:
        self.history = device.zeros((conv_kernel_dim - 1, conv_channels), DType.FP32)
        self.recurrent = device.zeros((num_value_heads, value_head_dim, key_head_dim), DType.FP32)

    @property
    def num_bytes(self) -> int:
        """Bytes taken."""
        return self.history.num_bytes + self.recurrent.num_bytes
