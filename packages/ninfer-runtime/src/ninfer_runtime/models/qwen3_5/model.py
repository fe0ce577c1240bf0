"""The text model: embedding, blocks, final norm and output head. No files are read here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ninfer_runtime.device.base import Device
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.kv import DeltaNetState, HybridState, KVCache
from ninfer_runtime.layers.attention import GatedAttention
from ninfer_runtime.layers.embedding import Embedding
from ninfer_runtime.layers.gated_delta_net import GatedDeltaNet
from ninfer_runtime.layers.linear import Linear
from ninfer_runtime.layers.mlp import GatedMLP
from ninfer_runtime.layers.moe import MixtureOfExperts
from ninfer_runtime.layers.norm import OffsetRMSNorm
from ninfer_runtime.models.architecture import SequenceState
from ninfer_runtime.models.qwen3_5.config import (
    AttentionConfig,
    DeltaNetConfig,
    RopeConfig,
    TextConfig,
)
from ninfer_runtime.ops.add import add
from ninfer_runtime.ops.rotary_table import rotary_table

OP = "qwen3_5.forward"


@dataclass(frozen=True, slots=True)
class Block:
    """One layer: a mixer and a feed-forward part, each normalised before and added after."""

    input_norm: OffsetRMSNorm
    mixer: GatedAttention | GatedDeltaNet
    post_attention_norm: OffsetRMSNorm
    feed_forward: GatedMLP | MixtureOfExperts

    def __call__(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        caches: Iterator[KVCache],
        recurrent: Iterator[DeltaNetState],
    ) -> None:
        """Add to the hidden rows `x` [T, D] what the layer makes of them.

        Args:
            x: Hidden rows of one sequence.
            rotation: Cosines and sines of their positions.
            caches: States of the attention layers from this layer on.
            recurrent: States of the recurrent layers from this layer on.
        """
        normed = self.input_norm(x)
        if isinstance(self.mixer, GatedAttention):
            mixed = self.mixer(normed, rotation, next(caches))
        else:
            mixed = self.mixer(normed, next(recurrent))
        add(x, mixed, out=x)
        add(x, self.feed_forward(self.post_attention_norm(x)), out=x)


def new_state(config: TextConfig, capacity: int, device: Device) -> HybridState:
    """Make an empty state for one sequence of at most `capacity` tokens."""
    if capacity < 1:
        raise OpArgumentError(OP, "capacity", expected="at least 1 token", found=capacity)
    mixers = config.mixers
    return HybridState(
        capacity,
        [
            KVCache(mixer.num_key_value_heads, mixer.head_dim, capacity, device)
            for mixer in mixers
            if isinstance(mixer, AttentionConfig)
        ],
        [
            DeltaNetState(
                mixer.linear_conv_kernel_dim,
                mixer.conv_channels,
                mixer.linear_num_value_heads,
                mixer.linear_value_head_dim,
                mixer.linear_key_head_dim,
                device,
            )
            for mixer in mixers
            if isinstance(mixer, DeltaNetConfig)
        ],
    )


class TextModel:
    """Implements `ninfer_runtime.models.architecture.LanguageModel`.

    Args:
        config: Geometry.
        rope: Rotation of the full attention layers.
        embedding: Table [V, D].
        blocks: Layers in order.
        final_norm: Norm over D.
        head: Projection from D to V.
        weight_bytes: Bytes of all weights on the device.
        device: Where the weights lie.
    """

    def __init__(
        self,
        config: TextConfig,
        rope: RopeConfig,
        embedding: Embedding,
        blocks: Sequence[Block],
        final_norm: OffsetRMSNorm,
        head: Linear,
        weight_bytes: int,
        device: Device,
    ) -> None:
        self.config = config
        self.rope = rope
        self.embedding = embedding
        self.blocks = tuple(blocks)
        self.final_norm = final_norm
        self.head = head
        self.weight_bytes = weight_bytes
        self.device = device

    @property
    def vocab_size(self) -> int:
        """Rows of the output head, V."""
        return self.config.vocab_size

    @property
    def max_position_embeddings(self) -> int:
        """Longest sequence in tokens that the model was made for."""
        return self.config.max_position_embeddings

    def state_bytes(self, capacity: int) -> int:
        """Bytes of the state of one sequence that has reached `capacity` tokens."""
        return self.new_state(capacity).largest_bytes

    def new_state(self, capacity: int) -> HybridState:
        """Make an empty state for one sequence of at most `capacity` tokens."""
        return new_state(self.config, capacity, self.device)

    def forward(self, token_ids: np.ndarray, state: SequenceState) -> Tensor:
        """Execute `token_ids` [T], T ≥ 1, after what `state` holds; returns rows [T, D].

        The rows are normalised by the final norm. After an error the state must not be used.

        Raises:
            OpArgumentError: An id is outside 0..V-1, the tokens do not fit into the state, or
                the state was not made by `new_state`.
        """
        if not isinstance(state, HybridState):
            raise OpArgumentError(OP, "state", expected="a HybridState", found=type(state).__name__)
        ids = self._checked_ids(token_ids, state)
        x = self.embedding(self.device.from_host(ids))
        rotation = text_rotation(self.rope, state.length, len(ids), self.device)
        caches, recurrent = iter(state.caches), iter(state.recurrent)
        for block in self.blocks:
            block(x, rotation, caches, recurrent)
        state.length += len(ids)
        return self.final_norm(x)

    def logits(self, hidden: Tensor) -> np.ndarray:
        """Multiply hidden rows [T, D], or some of them, with the head; float32 [T, V]."""
        return self.device.to_host(self.head(hidden))

    def _checked_ids(self, token_ids: np.ndarray, state: HybridState) -> np.ndarray:
        if token_ids.ndim != 1 or not len(token_ids):
            raise OpArgumentError(OP, "token_ids", expected="[T], T >= 1", found=token_ids.shape)
        if not np.issubdtype(token_ids.dtype, np.integer):
            raise OpArgumentError(OP, "token_ids", expected="integers", found=token_ids.dtype)
        room = state.capacity - state.length
        if len(token_ids) > room:
            raise OpArgumentError(
                OP, "token_ids", expected=f"at most {room} tokens", found=len(token_ids)
            )
        smallest, largest = int(token_ids.min()), int(token_ids.max())
        if smallest < 0 or largest >= self.vocab_size:
            raise OpArgumentError(
                OP,
                "token_ids",
                expected=f"ids in 0..{self.vocab_size - 1}",
                found=smallest if smallest < 0 else largest,
            )
        return token_ids.astype(np.int32)


def text_rotation(rope: RopeConfig, begin: int, T: int, device: Device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of T text positions from `begin` on, which are equal on all three axes."""
    positions = np.tile(np.arange(begin, begin + T, dtype=np.int32), (3, 1))
    return rotary_table(device.from_host(positions), theta=rope.rope_theta, axes=rope.axes)
