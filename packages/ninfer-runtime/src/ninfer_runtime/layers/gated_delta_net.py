"""Gated DeltaNet: a linear-time mixer with a matrix state for each head."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.layers.linear import Linear, StackedLinear
from ninfer_runtime.ops.gated_delta_net import (
    DeltaInputs,
    DeltaSlots,
    DeltaSteps,
    DeltaWeights,
    gated_delta_net,
)
from ninfer_runtime.ops.linear import Product


class GatedDeltaNet:
    """Convolution, gated delta rule and gated norm; no positions.

    Args:
        projection: The convolution's input [CH] = queries, keys and values, the output gate z
            [VH·DV], and a and b [VH] that give decay and step size, in this order.
        weights: Of what lies between the projections.
        output: Projection from VH·DV to D.
        eps: Of the norm.
    """

    def __init__(
        self, projection: StackedLinear, weights: DeltaWeights, output: Linear, eps: float
    ) -> None:
        self.projection = projection
        self.weights = weights
        self.output = output
        self.eps = eps

    def __call__(self, x: Tensor, slots: DeltaSlots, steps: DeltaSteps) -> Product:
        """Mix new tokens with what the slots hold of the earlier ones of their sequences.

        Args:
            x: [B·C, D]: normalised hidden rows.
            slots: States of this layer.
            steps: What each of the B sequences does.

        Returns:
            [B·C, D], still to be computed.
        """
        T, B = x.shape[0], steps.source.shape[0]
        inputs = DeltaInputs(*(part.reshape(B, T // B, -1) for part in self.projection(x)))
        mixed = gated_delta_net(inputs, self.weights, slots, steps, eps=self.eps, settled=True)
        return self.output.later(mixed)
