"""Qwen3.8-27B: MLPs in imported NVFP4, everything else of the text in FP8."""

from __future__ import annotations

from collections.abc import Mapping

from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.model import Model
from ninfer_quant.recipes.official.assignments import (
    DELTA_NET_CONTROLS,
    QUANTIZED,
    configure_optional,
    import_words,
    projections,
    require_dense,
)
from ninfer_quant.recipes.official.formats import FP8, NVFP4
from ninfer_quant.sources.store import WeightStore

NVFP4_LAYERS = 56
EMBEDDING = "text/token_embedding"


def configure(model: Model, recipe: Recipe, sources: Mapping[str, WeightStore]) -> None:
    """Assign every parameter; all of the text but its embedding comes from the source."""
    require_dense(model)
    configure_optional(model, recipe)
    quantized = sources[QUANTIZED]
    block_scaled = projections(
        model, *(f"text/layers/{layer}/mlp/*" for layer in range(NVFP4_LAYERS))
    )
    controls = projections(model, DELTA_NET_CONTROLS)
    row_scaled = [
        name
        for name in projections(model, "text/*")
        if name not in block_scaled and name not in controls
    ]
    import_words(model, recipe, block_scaled, quantized, NVFP4, "AllowA4")
    import_words(model, recipe, row_scaled, quantized, FP8, "AllowA8")
    for name in recipe.match("text/*"):
        if name not in (EMBEDDING, *block_scaled, *row_scaled):
            recipe.assign(name, source=model.source(name, quantized))
    recipe.assign(EMBEDDING, format=FP8, method="fp8_row_maxabs")
