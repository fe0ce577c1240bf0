"""Objects of the vision tower (container specification, section 11.4)."""

from __future__ import annotations

from collections.abc import Iterator

from ninfer_format.legacy.geometry import VisionGeometry
from ninfer_format.legacy.object_rows import Block, ObjectRow


def vision_rows(vision: VisionGeometry, text_hidden_size: int) -> Iterator[ObjectRow]:
    """Every object of the vision tower."""
    D, merged = vision.hidden_size, vision.merger_width
    root = Block("vision/", "vision/")
    yield root.same("patch_embedding", D, vision.patch_width)
    yield root.same("patch_embedding_bias", D)
    yield root.same("position_embedding", vision.num_position_embeddings, D)
    for layer in range(vision.depth):
        name = f"vision/layers/{layer}/"
        yield from _layer_rows(vision, Block(name, name))
    yield root.same("merger/fc1", merged, merged)
    yield root.same("merger/fc1_bias", merged)
    yield root.same("merger/fc2", text_hidden_size, merged)
    yield root.same("merger/fc2_bias", text_hidden_size)
    yield root.same("merger/norm/weight", D, parameter="merger/norm_weight")
    yield root.same("merger/norm/bias", D, parameter="merger/norm_bias")


def _layer_rows(vision: VisionGeometry, block: Block) -> Iterator[ObjectRow]:
    D, inner = vision.hidden_size, vision.intermediate_size
    roles = ("query", "key", "value")
    yield block.split("attention/qkv", {f"attention/{role}": D for role in roles}, D)
    yield block.split("attention/qkv_bias", {f"attention/{role}_bias": D for role in roles})
    yield block.same("attention/output", D, D)
    yield block.same("attention/output_bias", D)
    yield block.same("mlp/fc1", inner, D)
    yield block.same("mlp/fc1_bias", inner)
    yield block.same("mlp/fc2", D, inner)
    yield block.same("mlp/fc2_bias", D)
    for norm in ("norm1", "norm2"):
        yield block.same(f"{norm}/weight", D, parameter=f"{norm}_weight")
        yield block.same(f"{norm}/bias", D, parameter=f"{norm}_bias")
