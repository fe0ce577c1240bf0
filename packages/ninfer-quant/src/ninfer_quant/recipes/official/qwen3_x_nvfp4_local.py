"""A dense model: as qwen3_8_27b, with MLPs in NVFP4 made from the checkpoint's own values.

A matrix whose sizes the layout of NVFP4 does not store stays as qwen3_8_27b has it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ninfer_format.layouts import BLOCK_SCALE_K16_M128X4_V1
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.model import Model
from ninfer_quant.recipes.official.assignments import (
    configure_dense_text,
    configure_optional,
    projections,
)
from ninfer_quant.recipes.official.formats import NVFP4, Q4, Q8
from ninfer_quant.sources.store import WeightStore


def configure(model: Model, recipe: Recipe, sources: Mapping[str, WeightStore]) -> None:
    """Assign every parameter; activations keep 16 bits, since nothing is known of them."""
    configure_optional(model, recipe)
    configure_dense_text(model, recipe, vocabulary=Q8, gate_up=Q4)
    names = [
        name
        for name in projections(model, "text/layers/*/mlp/*")
        if _is_stored(*model.parameters[name].shape)
    ]
    if names:
        recipe.assign(names, format=NVFP4, method="nvfp4_mse", activation_policy="A16Only")


def _is_stored(N: int, K: int) -> bool:
    layout = BLOCK_SCALE_K16_M128X4_V1
    return N % layout.row_block == 0 and K % layout.column_block == 0
