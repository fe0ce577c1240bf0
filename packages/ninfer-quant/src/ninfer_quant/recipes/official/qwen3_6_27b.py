"""Qwen3.6-27B: Q4 and Q5 matrices, Q6 embedding and output head."""

from __future__ import annotations

from collections.abc import Mapping

from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.model import Model
from ninfer_quant.recipes.official.assignments import (
    allow_a8_mlp,
    configure_dense_text,
    configure_optional,
)
from ninfer_quant.recipes.official.formats import Q4, Q6
from ninfer_quant.sources.store import WeightStore


def configure(model: Model, recipe: Recipe, sources: Mapping[str, WeightStore]) -> None:
    """Assign every parameter."""
    configure_optional(model, recipe)
    configure_dense_text(model, recipe, vocabulary=Q6, gate_up=Q4)
    allow_a8_mlp(model, recipe)
