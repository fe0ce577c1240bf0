"""Full attention with normalised queries and keys, rotary positions and an output gate."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.kv.cache import KVCache
from ninfer_runtime.layers.linear import Linear, StackedLinear
from ninfer_runtime.layers.norm import OffsetRMSNorm
from ninfer_runtime.ops.attention import attention
from ninfer_runtime.ops.rotary import rotary
from ninfer_runtime.ops.sigmoid_gate import sigmoid_gate


class GatedAttention:
    """``output(attention(rope(norm(q)), rope(norm(k)), v) · σ(gate))``.

    Args:
        projection: Query [H·HD], key [KH·HD], gate [H·HD] and value [KH·HD], in this order.
        query_norm: Norm of each query head, over HD.
        key_norm: Norm of each key head, over HD.
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

    def __call__(self, x: Tensor, rotation: tuple[Tensor, Tensor], cache: KVCache) -> Tensor:
        """Mix the tokens `x` [T, D] with those in `cache`, to which they are appended.

        Args:
            x: Normalised hidden rows.
            rotation: Cosines and sines of the positions of `x`, each [T, R].
            cache: Keys and values of the sequence.

        Returns:
            [T, D].
        """
        T = x.shape[0]
        query, key, gate, value = self.projection(x)
        query = self.query_norm(query.reshape(T, -1, self.head_dim))
        key = self.key_norm(key.reshape(T, -1, self.head_dim))
        cos, sin = rotation
        rotary(query, cos, sin, out=query)
        rotary(key, cos, sin, out=key)
        keys, values = cache.append(key, value.reshape(T, -1, self.head_dim))
        mixed = attention(query, keys, values, scale=self.head_dim**-0.5).reshape(T, -1)
        return self.output(sigmoid_gate(mixed, gate, out=mixed))
