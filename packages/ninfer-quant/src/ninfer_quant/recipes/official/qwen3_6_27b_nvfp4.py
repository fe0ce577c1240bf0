"""Qwen3.6-27B: most of the text in imported NVFP4, the most sensitive matrices BF16."""

from __future__ import annotations

from collections.abc import Mapping

from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.model import Model
from ninfer_quant.recipes.official.assignments import (
    QUANTIZED,
    configure_optional,
    import_words,
    keep_controls_direct,
    keep_direct,
    projections,
    quantize,
    require_dense,
)
from ninfer_quant.recipes.official.formats import NVFP4, Q8
from ninfer_quant.sources.store import WeightStore

DIRECT_ATTENTION_LAYERS = 24
DIRECT_ATTENTION_OUTPUTS = (3, 7)
DIRECT_DELTA_NET_OUTPUTS = (4,)


def configure(model: Model, recipe: Recipe, sources: Mapping[str, WeightStore]) -> None:
    """Assign every parameter."""
    require_dense(model)
    configure_optional(model, recipe)
    direct = {
        *projections(model, *_direct_patterns()),
        *projections(model, "*/gdn/[ab]_projection"),
    }
    imported = [name for name in projections(model, "text/layers/*") if name not in direct]
    import_words(model, recipe, imported, sources[QUANTIZED], NVFP4, "AllowA4")
    keep_direct(recipe, sorted(direct))
    keep_controls_direct(model, recipe)
    quantize(recipe, ["text/token_embedding", "text/output_head"], Q8)


def _direct_patterns() -> list[str]:
    inputs = [
        f"text/layers/{layer}/attention/{role}"
        for layer in range(DIRECT_ATTENTION_LAYERS)
        for role in ("query", "key", "gate", "value")
    ]
    outputs = [f"text/layers/{layer}/attention/output" for layer in DIRECT_ATTENTION_OUTPUTS]
    outputs += [f"text/layers/{layer}/gdn/output" for layer in DIRECT_DELTA_NET_OUTPUTS]
    return inputs + outputs
