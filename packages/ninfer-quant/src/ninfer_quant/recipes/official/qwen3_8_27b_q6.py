"""Qwen3.8-27B: as qwen3_8_27b, with Q6 gate and up matrices."""

from __future__ import annotations

from collections.abc import Mapping

from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.model import Model
from ninfer_quant.recipes.official.assignments import configure_dense_text, configure_optional
from ninfer_quant.recipes.official.formats import Q6, Q8
from ninfer_quant.sources.store import WeightStore


def configure(model: Model, recipe: Recipe, sources: Mapping[str, WeightStore]) -> None:
    """Assign every parameter."""
    configure_optional(model, recipe)
    configure_dense_text(model, recipe, vocabulary=Q8, gate_up=Q6)
