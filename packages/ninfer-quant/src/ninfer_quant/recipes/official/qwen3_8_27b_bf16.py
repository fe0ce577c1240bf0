"""Qwen3.8-27B: everything in BF16, as the checkpoint has it."""

from __future__ import annotations

from collections.abc import Mapping

from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.model import Model
from ninfer_quant.recipes.official.assignments import (
    keep_controls_direct,
    require_dense,
    share_draft_context,
)
from ninfer_quant.sources.store import WeightStore


def configure(model: Model, recipe: Recipe, sources: Mapping[str, WeightStore]) -> None:
    """Keep the direct formats that every parameter starts with."""
    require_dense(model)
    keep_controls_direct(model, recipe)
    share_draft_context(model, recipe)
