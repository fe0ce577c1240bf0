"""Conversion of checkpoints to `.ninfer` artifacts by recipe.

The names below are what a program or a recipe file needs; they are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_format.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ninfer_quant.errors import ConversionError, RecipeError
    from ninfer_quant.pipeline.conversion import ConversionRequest, plan_conversion
    from ninfer_quant.pipeline.run import RunOptions, run_conversion
    from ninfer_quant.recipes.api import Recipe
    from ninfer_quant.recipes.loading import load_recipe
    from ninfer_quant.recipes.model import Model

_MODULES = {
    "errors": ("ConversionError", "RecipeError"),
    "pipeline.conversion": ("ConversionRequest", "plan_conversion"),
    "pipeline.run": ("RunOptions", "run_conversion"),
    "recipes.api": ("Recipe",),
    "recipes.loading": ("load_recipe",),
    "recipes.model": ("Model",),
}

__all__ = [
    "ConversionError",
    "ConversionRequest",
    "Model",
    "Recipe",
    "RecipeError",
    "RunOptions",
    "load_recipe",
    "plan_conversion",
    "run_conversion",
]

__getattr__ = lazy_exports(__name__, _MODULES)
