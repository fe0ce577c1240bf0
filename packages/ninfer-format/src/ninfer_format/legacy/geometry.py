"""Sizes of the published models (container specification, section 11.2)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertGeometry:
    """Sizes of a mixture of experts."""

    num_experts: int = 256
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512


@dataclass(frozen=True, slots=True)
class TextGeometry:
    """Sizes of a language model; its feed-forward network is dense or a mixture of experts."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    linear_num_value_heads: int
    feed_forward: int | ExpertGeometry
    vocab_size: int = 248320
    max_position_embeddings: int = 262144
    head_dim: int = 256
    linear_num_key_heads: int = 16
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    proposal_rows: int = 131072

    @property
    def layer_types(self) -> list[str]:
        """What each layer mixes its tokens with."""
        return [
            "full_attention" if layer % 4 == 3 else "linear_attention"
            for layer in range(self.num_hidden_layers)
        ]

    @property
    def query_rows(self) -> int:
        """Rows of the attention's query and gate."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_rows(self) -> int:
        """Rows of the attention's key and value."""
        return self.num_key_value_heads * self.head_dim

    @property
    def linear_key_rows(self) -> int:
        """Rows of the delta net's query and key."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def linear_value_rows(self) -> int:
        """Rows of the delta net's value and z."""
        return self.linear_num_value_heads * self.linear_value_head_dim


@dataclass(frozen=True, slots=True)
class VisionGeometry:
    """Sizes of the vision tower."""

    depth: int = 27
    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_heads: int = 16
    patch_size: int = 16
    temporal_patch_size: int = 2
    spatial_merge_size: int = 2
    num_position_embeddings: int = 2304

    @property
    def patch_width(self) -> int:
        """Values of one patch, three channels each."""
        return 3 * self.temporal_patch_size * self.patch_size**2

    @property
    def merger_width(self) -> int:
        """Width of the patches that become one text position."""
        return self.spatial_merge_size**2 * self.hidden_size


@dataclass(frozen=True, slots=True)
class SelectorGeometry:
    """Sizes of what DFlash2 adds: short convolutions and the candidate selector."""

    conv_kernel_size: int = 2
    conv_group_size: int = 16
    selector_rank: int = 256
    selector_top_k: int = 16


@dataclass(frozen=True, slots=True)
class DraftGeometry:
    """Sizes of a block drafter."""

    architecture: str
    intermediate_size: int
    layer_types: tuple[str, ...]
    sliding_window: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    selector: SelectorGeometry | None = None
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    head_dim: int = 128
    max_position_embeddings: int = 262144

    @property
    def query_rows(self) -> int:
        """Rows of the attention's query."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_rows(self) -> int:
        """Rows of the attention's key and value."""
        return self.num_key_value_heads * self.head_dim


DENSE_27B = TextGeometry(
    hidden_size=5120,
    num_hidden_layers=64,
    num_attention_heads=24,
    num_key_value_heads=4,
    linear_num_value_heads=48,
    feed_forward=17408,
)
MOE_35B = TextGeometry(
    hidden_size=2048,
    num_hidden_layers=40,
    num_attention_heads=16,
    num_key_value_heads=2,
    linear_num_value_heads=32,
    feed_forward=ExpertGeometry(),
)
VISION = VisionGeometry()
DFLASH = DraftGeometry(
    architecture="DFlashDraftModel",
    intermediate_size=6144,
    layer_types=("sliding_attention",) * 5 + ("full_attention",),
    sliding_window=4096,
    target_layer_ids=(1, 6, 11, 16, 22, 27, 32, 37),
    mask_token_id=248077,
)
DFLASH2 = DraftGeometry(
    architecture="DFlash2DraftModel",
    intermediate_size=17408,
    layer_types=("sliding_attention",) * 5,
    sliding_window=2048,
    target_layer_ids=(5, 19, 33, 47, 61),
    mask_token_id=248070,
    selector=SelectorGeometry(),
)
