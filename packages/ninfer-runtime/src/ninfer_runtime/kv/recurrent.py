"""Fixed-size state of one Gated DeltaNet layer."""

from __future__ import annotations

from ninfer_runtime.device.base import Device
from ninfer_runtime.device.dtypes import DType


class DeltaNetState:
    """The inputs that the convolution still needs, and the matrix of each value head.

    Args:
        linear_conv_kernel_dim: J, taps of the convolution.
        conv_channels: C.
        linear_num_value_heads: VH.
        linear_value_head_dim: DV.
        linear_key_head_dim: DK.
        device: Where the state lies.

    Attributes:
        history: [J-1, C], fp32: the last inputs of the convolution, oldest first.
        recurrent: [VH, DV, DK], fp32.
    """

    def __init__(
        self,
        linear_conv_kernel_dim: int,
        conv_channels: int,
        linear_num_value_heads: int,
        linear_value_head_dim: int,
        linear_key_head_dim: int,
        device: Device,
    ) -> None:
        heads = (linear_num_value_heads, linear_value_head_dim, linear_key_head_dim)
        self.history = device.zeros((linear_conv_kernel_dim - 1, conv_channels), DType.FP32)
        self.recurrent = device.zeros(heads, DType.FP32)

    @property
    def num_bytes(self) -> int:
        """Bytes taken."""
        return self.history.num_bytes + self.recurrent.num_bytes
