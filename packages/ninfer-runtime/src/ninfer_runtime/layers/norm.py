"""Root mean square normalisation whose weight is stored relative to one."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.rms_norm import rms_norm


class OffsetRMSNorm:
    """``x / sqrt(mean(x²) + eps) · (1 + weight)`` over the last axis.

    Args:
        weight: [D].
        eps: Added to the mean of squares.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise `x` [..., D]."""
        return rms_norm(x, self.weight, eps=self.eps, unit_offset=True)
