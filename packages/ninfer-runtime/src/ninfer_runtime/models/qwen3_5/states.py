"""What the layers of the text model keep for the next tokens of sequences."""

from __future__ import annotations

from ninfer_runtime.device.base import Device
from ninfer_runtime.kv.formats import KVFormat
from ninfer_runtime.kv.pages import new_pages, page_bytes
from ninfer_runtime.kv.slots import DeltaGeometry, new_slots, slot_bytes
from ninfer_runtime.kv.state import ModelState
from ninfer_runtime.models.qwen3_5.config import AttentionConfig, DeltaNetConfig, TextConfig


def new_state(
    config: TextConfig,
    device: Device,
    *,
    num_pages: int,
    num_slots: int,
    ring: int,
    kv_format: KVFormat,
) -> ModelState:
    """Memory for many sequences; see `ninfer_runtime.models.architecture.LanguageModel`."""
    return ModelState(
        pages=tuple(
            new_pages(kv_format, num_pages, layer.num_key_value_heads, device, layer.head_dim)
            for layer in attention_layers(config)
        ),
        slots=tuple(
            new_slots(geometry(layer), num_slots, ring, device)
            for layer in recurrent_layers(config)
        ),
    )


def state_bytes(
    config: TextConfig, device: Device, *, ring: int, kv_format: KVFormat
) -> tuple[int, int]:
    """Bytes of one page and of one slot of `new_state`, all layers together."""
    pages = sum(
        page_bytes(kv_format, layer.num_key_value_heads, device, layer.head_dim)
        for layer in attention_layers(config)
    )
    slots = sum(slot_bytes(geometry(layer), ring, device) for layer in recurrent_layers(config))
    return pages, slots


def attention_layers(config: TextConfig) -> list[AttentionConfig]:
    """The full attention layers in order."""
    return [mixer for mixer in config.mixers if isinstance(mixer, AttentionConfig)]


def recurrent_layers(config: TextConfig) -> list[DeltaNetConfig]:
    """The Gated DeltaNet layers in order."""
    return [mixer for mixer in config.mixers if isinstance(mixer, DeltaNetConfig)]


def geometry(layer: DeltaNetConfig) -> DeltaGeometry:
    """Sizes of the slots of a layer."""
    return DeltaGeometry(
        value_heads=layer.linear_num_value_heads,
        value_head_dim=layer.linear_value_head_dim,
        key_head_dim=layer.linear_key_head_dim,
        channels=layer.conv_channels,
    )
