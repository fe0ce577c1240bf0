"""Geometry of the family's components, as typed values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ninfer_runtime.models.qwen3_5.draft_config import DraftConfig


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Partial rotary embedding with three interleaved position axes."""

    rope_theta: float
    partial_rotary_factor: float
    mrope_section: tuple[int, int, int]

    def rotary_dim(self, head_dim: int) -> int:
        """Leading components of a head that are rotated: trunc(head_dim · factor).

        The product is rounded to binary32 as the factor is. In binary64 a factor that was rounded
        down, such as 0.9, would give one component less than was meant.
        """
        return int(np.float32(head_dim) * np.float32(self.partial_rotary_factor))

    @property
    def axes(self) -> tuple[int, ...]:
        """The position axis (0 temporal, 1 height, 2 width) that each rotated pair follows.

        Pair r belongs to axis 1 if r % 3 == 1 and r < 3·mrope_section[1], to axis 2 if
        r % 3 == 2 and r < 3·mrope_section[2], else to axis 0.
        """
        return tuple(
            pair % 3 if pair % 3 and pair < 3 * self.mrope_section[pair % 3] else 0
            for pair in range(sum(self.mrope_section))
        )


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Geometry of the full attention layers."""

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope: RopeConfig

    @property
    def query_width(self) -> int:
        """H · HD, also the width of the output gate."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_width(self) -> int:
        """KH · HD, also the width of the values."""
        return self.num_key_value_heads * self.head_dim

    @property
    def rotary_dim(self) -> int:
        """Leading components of each head that are rotated."""
        return self.rope.rotary_dim(self.head_dim)


@dataclass(frozen=True, slots=True)
class DeltaNetConfig:
    """Geometry of the Gated DeltaNet layers."""

    linear_num_key_heads: int
    linear_key_head_dim: int
    linear_num_value_heads: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int

    @property
    def key_width(self) -> int:
        """Width of all keys, also of all queries."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_width(self) -> int:
        """Width of all values, also of the output gate z."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_width + self.value_width


Mixer = AttentionConfig | DeltaNetConfig
"""What a layer mixes its tokens with."""


@dataclass(frozen=True, slots=True)
class DenseConfig:
    """Geometry of feed-forward layers that every token runs through."""

    intermediate_size: int


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Geometry of mixtures of experts; one expert more is shared by all tokens."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int


FeedForward = DenseConfig | MoeConfig
"""What follows the mixer in every layer."""


@dataclass(frozen=True, slots=True)
class TextConfig:
    """The language model; `mixers` has one entry per layer."""

    hidden_size: int
    vocab_size: int
    num_hidden_layers: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    rms_norm_eps: float
    feed_forward: FeedForward
    mixers: tuple[Mixer, ...]

    @property
    def is_moe(self) -> bool:
        """Whether the feed-forward layers are mixtures of experts."""
        return isinstance(self.feed_forward, MoeConfig)


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The vision tower."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    num_position_embeddings: int

    @property
    def patch_width(self) -> int:
        """Values of one patch: 3 channels, temporal_patch_size frames, patch_size² pixels."""
        return 3 * self.temporal_patch_size * self.patch_size**2

    @property
    def merger_width(self) -> int:
        """Width of the spatial_merge_size² patches that become one text position."""
        return self.spatial_merge_size**2 * self.hidden_size


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The selected components of one model.

    Attributes:
        text: The language model.
        mtp: Attention geometry of the multi-token prediction layer, None without that component.
            The rest of its geometry is the text's.
        vision: The vision tower, None without that component.
        drafts: The block drafters among the components.
    """

    text: TextConfig
    mtp: AttentionConfig | None = None
    vision: VisionConfig | None = None
    drafts: tuple[DraftConfig, ...] = ()
