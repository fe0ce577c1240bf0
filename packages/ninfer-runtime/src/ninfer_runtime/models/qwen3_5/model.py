"""The text model: embedding, blocks, final norm and output head. No files are read here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ninfer_runtime.device.base import Device
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.kv.formats import KVFormat
from ninfer_runtime.kv.pages import KVPages
from ninfer_runtime.kv.state import ModelState
from ninfer_runtime.layers.attention import GatedAttention
from ninfer_runtime.layers.embedding import Embedding
from ninfer_runtime.layers.gated_delta_net import GatedDeltaNet
from ninfer_runtime.layers.linear import Linear
from ninfer_runtime.layers.mlp import GatedMLP
from ninfer_runtime.layers.moe import MixtureOfExperts
from ninfer_runtime.layers.norm import OffsetRMSNorm
from ninfer_runtime.models.qwen3_5.config import RopeConfig, TextConfig
from ninfer_runtime.models.qwen3_5.states import new_state, state_bytes
from ninfer_runtime.models.step import Step
from ninfer_runtime.ops.gated_delta_net import DeltaSlots
from ninfer_runtime.ops.linear import Product
from ninfer_runtime.ops.moe_experts import ExpertsProduct
from ninfer_runtime.ops.rotary_table import rotary_table


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
        added: Product | ExpertsProduct | None,
        rotation: tuple[Tensor, Tensor],
        step: Step,
        pages: Iterator[KVPages],
        slots: Iterator[DeltaSlots],
    ) -> Product | ExpertsProduct:
        """Execute the layer for hidden rows; sums are taken together with the norms after them.

        Args:
            x: [B·C, D]: what the layers before the last one made; `added` and what the mixer gives
                are added to it.
            added: [B·C, D]: what the last layer adds to `x`, None before the first one.
            rotation: Cosines and sines of the rows' positions, each [B·C, R].
            step: What is executed.
            pages: Of the attention layers from this layer on.
            slots: Of the recurrent layers from this layer on.

        Returns:
            [B·C, D], still to be computed: what this layer adds to `x`.
        """
        normed = self.input_norm(x, added, for_products=True)
        if isinstance(self.mixer, GatedAttention):
            mixed = self.mixer(normed, rotation, next(pages), step.spans)
        else:
            mixed = self.mixer(normed, next(slots), step.delta)
        return self.feed_forward(self.post_attention_norm(x, mixed, for_products=True))


class TextModel:
    """Implements `ninfer_runtime.models.architecture.LanguageModel`; see there for contracts.

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

    def state_bytes(self, *, num_pages: int, num_slots: int, ring: int, kv_format: KVFormat) -> int:
        """Bytes of what `new_state` makes."""
        pages, slots = state_bytes(self.config, self.device, ring=ring, kv_format=kv_format)
        return num_pages * pages + num_slots * slots

    def new_state(
        self, *, num_pages: int, num_slots: int, ring: int, kv_format: KVFormat
    ) -> ModelState:
        """Make memory for the states of many sequences."""
        return new_state(
            self.config,
            self.device,
            num_pages=num_pages,
            num_slots=num_slots,
            ring=ring,
            kv_format=kv_format,
        )

    def forward(self, step: Step, state: ModelState) -> Tensor:
        """Execute new tokens of some sequences; returns hidden rows [B·C, D]."""
        B, C = step.shape
        x = self.embedding(step.token_ids.reshape(B * C))
        rotation = text_rotation(self.rope, step)
        pages, slots = iter(state.pages), iter(state.slots)
        added: Product | ExpertsProduct | None = None
        for block in self.blocks:
            added = block(x, added, rotation, step, pages, slots)
        return self.final_norm(x, added)

    def logits(self, hidden: Tensor) -> Tensor:
        """Multiply hidden rows [T, D] with the head: fp32 [T, V]."""
        out = self.device.empty((hidden.shape[0], self.vocab_size), DType.FP32)
        return self.head(hidden, out=out)


def text_rotation(rope: RopeConfig, step: Step) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the positions of a step, each [B·C, R]."""
    return rotary_table(step.positions, theta=rope.rope_theta, axes=rope.axes)
