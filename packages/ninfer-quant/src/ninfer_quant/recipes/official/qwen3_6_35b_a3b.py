"""Qwen3.6-35B-A3B: Q4 and Q5 experts, Q8 for what every token runs through."""

from __future__ import annotations

from collections.abc import Mapping

from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.model import Model
from ninfer_quant.recipes.official.assignments import configure_mixture_text, configure_optional
from ninfer_quant.sources.store import WeightStore


def configure(model: Model, recipe: Recipe, sources: Mapping[str, WeightStore]) -> None:
    """Assign every parameter."""
    configure_optional(model, recipe)
    configure_mixture_text(model, recipe)
