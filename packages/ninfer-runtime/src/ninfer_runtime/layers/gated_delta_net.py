"""Gated DeltaNet: a linear-time mixer with a matrix state for each head."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.kv.recurrent import DeltaNetState
from ninfer_runtime.layers.linear import Linear, StackedLinear
from ninfer_runtime.ops.causal_conv1d import causal_conv1d
from ninfer_runtime.ops.delta_gates import delta_gates
from ninfer_runtime.ops.gated_delta_rule import gated_delta_rule
from ninfer_runtime.ops.gated_rms_norm import gated_rms_norm


class GatedDeltaNet:
    """Convolution, gated delta rule and gated norm; no positions.

    Args:
        projection: The convolution's input [C] = queries, keys and values, the output gate z
            [VH·DV], and a and b [VH] that give decay and step size, in this order.
        convolution: [J, C].
        a_log: [VH].
        dt_bias: [VH].
        norm: [DV].
        output: Projection from VH·DV to D.
        eps: Of the norm.
    """

    def __init__(
        self,
        projection: StackedLinear,
        convolution: Tensor,
        a_log: Tensor,
        dt_bias: Tensor,
        norm: Tensor,
        output: Linear,
        eps: float,
    ) -> None:
        self.projection = projection
        self.convolution = convolution
        self.a_log = a_log
        self.dt_bias = dt_bias
        self.norm = norm
        self.output = output
        self.eps = eps

    def __call__(self, x: Tensor, state: DeltaNetState) -> Tensor:
        """Mix the tokens `x` [T, D] with what `state` holds of the earlier ones.

        Args:
            x: Normalised hidden rows.
            state: State of the sequence, advanced by T tokens.

        Returns:
            [T, D].
        """
        T = x.shape[0]
        u, z, a, b = self.projection(x)
        mixed = causal_conv1d(u, self.convolution, state.history)
        VH, DV, DK = state.recurrent.shape
        key_width = (mixed.shape[1] - VH * DV) // 2
        query = mixed[:, :key_width].reshape(T, -1, DK)
        key = mixed[:, key_width : 2 * key_width].reshape(T, -1, DK)
        value = mixed[:, 2 * key_width :].reshape(T, VH, DV)
        g, beta = delta_gates(a, b, self.a_log, self.dt_bias)
        rows = gated_delta_rule(query, key, value, g, beta, state.recurrent)
        gated_rms_norm(rows, z.reshape(T, VH, DV), self.norm, eps=self.eps, out=rows)
        return self.output(rows.reshape(T, -1))
