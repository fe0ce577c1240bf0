"""Full attention with normalised queries and keys, rotary positions and an output gate."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.kv.pages import KVPages
from ninfer_runtime.layers.linear import Linear, StackedLinear
from ninfer_runtime.layers.norm import OffsetRMSNorm
from ninfer_runtime.ops.attention_inputs import AttentionInputs
from ninfer_runtime.ops.linear import Product
from ninfer_runtime.ops.paged_arguments import Spans
from ninfer_runtime.ops.paged_attention import paged_attention


class GatedAttention:
    """``output(attention(rope(norm(q)), rope(norm(k)), v) · σ(gate))``.

    Args:
        projection: Query [H·HD], key [KH·HD], gate [H·HD] and value [KH·HD], in this order.
        query_norm: Norm of each query head, over HD.
        key_norm: Norm of each key head, over HD, with the same eps.
        output: Projection from H·HD to D.
        head_dim: HD.
    """

    def __init__(
        self,
        projection: StackedLinear,
        query_norm: OffsetRMSNorm,
        key_norm: OffsetRMSNorm,
        output: Linear,
        head_dim: int,
    ) -> None:
        self.projection = projection
        self.query_norm = query_norm
        self.key_norm = key_norm
        self.output = output
        self.head_dim = head_dim

    def __call__(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], pages: KVPages, spans: Spans
    ) -> Product:
        """Mix new tokens with the earlier ones of their sequences, and append them to the pages.

        Args:
            x: [B·C, D]: normalised hidden rows.
            rotation: Cosines and sines of their positions, each [B·C, R].
            pages: Keys and values of this layer.
            spans: Where the B sequences stand in them.

        Returns:
            [B·C, D], still to be computed.
        """
        T, B = x.shape[0], spans.before.shape[0]
        query, key, gate, value = (
            part.reshape(B, T // B, -1, self.head_dim) for part in self.projection(x)
        )
        cos, sin = (part.reshape(B, T // B, -1) for part in rotation)
        inputs = AttentionInputs(
            query,
            key,
            value,
            self.query_norm.weight,
            self.key_norm.weight,
            cos,
            sin,
            self.query_norm.eps,
        )
        mixed = paged_attention(inputs, gate, pages, spans, scale=self.head_dim**-0.5)
        return self.output.later(mixed)
