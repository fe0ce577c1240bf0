"""Qwen3.6-35B-A3B: as qwen3_6_35b_a3b, with experts in imported NVFP4."""

from __future__ import annotations

from collections.abc import Mapping

from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.model import Model
from ninfer_quant.recipes.official.assignments import (
    QUANTIZED,
    configure_mixture_text,
    configure_optional,
    import_words,
)
from ninfer_quant.recipes.official.formats import NVFP4
from ninfer_quant.sources.store import WeightStore


def configure(model: Model, recipe: Recipe, sources: Mapping[str, WeightStore]) -> None:
    """Assign every parameter; matrices of experts are stacked with divisors of their own."""
    configure_optional(model, recipe)
    configure_mixture_text(model, recipe)
    names: list[str] = []
    for layer in range(model.config["num_hidden_layers"]):
        moe = f"text/layers/{layer}/moe/"
        experts = [f"{moe}experts/{expert}/" for expert in range(model.config["num_experts"])]
        gate_up = [f"{expert}{role}" for expert in experts for role in ("gate", "up")]
        down = [f"{expert}down" for expert in experts]
        shared = [f"{moe}shared/{role}" for role in ("gate", "up", "down")]
        names += [*gate_up, *down, *shared]
        recipe.group(gate_up)
        recipe.group(down)
        recipe.group(shared[:2])
    import_words(model, recipe, names, sources[QUANTIZED], NVFP4, "AllowA4")
