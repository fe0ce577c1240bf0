"""Root mean square normalisation whose weight is stored relative to one."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.add_rms_norm import add_product_rms_norm, add_rms_norm
from ninfer_runtime.ops.linear import Product
from ninfer_runtime.ops.moe_experts import ExpertsProduct
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

    def __call__(
        self,
        x: Tensor,
        added: Tensor | Product | ExpertsProduct | None = None,
        *,
        for_products: bool = False,
    ) -> Tensor:
        """Normalise `x` [T, D], after adding `added` [T, D] to it in place.

        Args:
            x: Rows.
            added: What is added.
            for_products: Nothing but products will read the result.
        """
        if added is None:
            return rms_norm(x, self.weight, eps=self.eps, unit_offset=True)
        if isinstance(added, Product | ExpertsProduct):
            if for_products:
                return add_product_rms_norm(x, added, self.weight, eps=self.eps, unit_offset=True)
            added = added.compute()
        return add_rms_norm(x, added, self.weight, eps=self.eps, unit_offset=True)
