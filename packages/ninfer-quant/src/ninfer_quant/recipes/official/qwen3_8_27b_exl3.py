"""Qwen3.8-27B: the text in imported trellis codes, as far as there are some, the rest BF16."""

from __future__ import annotations

from collections.abc import Mapping

from ninfer_quant.errors import RecipeError
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.model import Model
from ninfer_quant.recipes.official.assignments import (
    QUANTIZED,
    configure_optional,
    keep_controls_direct,
    keep_direct,
    projections,
    require_dense,
)
from ninfer_quant.recipes.official.formats import EXL3
from ninfer_quant.recipes.selection import IMPORT_ENCODED
from ninfer_quant.sources.logical import LogicalSource, select_rows
from ninfer_quant.sources.store import WeightStore
from ninfer_quant.sources.trellis_store import TrellisStore


def configure(model: Model, recipe: Recipe, sources: Mapping[str, WeightStore]) -> None:
    """Assign every parameter."""
    require_dense(model)
    configure_optional(model, recipe)
    store = sources[QUANTIZED]
    if not isinstance(store, TrellisStore):
        raise RecipeError(f"source {QUANTIZED!r} is no folder of trellis codes")
    keep_direct(recipe, projections(model, "mtp/*", "dflash/*", "dflash2/*"))
    keep_controls_direct(model, recipe)
    imported: set[str] = set()
    for names in model.packing_groups:
        if imported.isdisjoint(names):
            imported.update(_import_group(model, recipe, names, store))
    for name in projections(model, "*"):
        if name not in imported and name in store.names:
            _import(recipe, name, store.parameter(name, model.parameters[name].shape))


def _import_group(
    model: Model, recipe: Recipe, names: tuple[str, ...], store: TrellisStore
) -> tuple[str, ...]:
    """Import a group that is stored as one matrix under the name of its first member."""
    shapes = [model.parameters[name].shape for name in names]
    rows = sum(shape[0] for shape in shapes)
    whole = (rows, *shapes[0][1:])
    if store.matrix_shape(names[0]) != whole:
        return ()
    matrix = store.parameter(names[0], whole)
    begin = 0
    for name, shape in zip(names, shapes, strict=True):
        _import(recipe, name, select_rows(matrix, [(begin, begin + shape[0])]))
        begin += shape[0]
    return names


def _import(recipe: Recipe, name: str, source: LogicalSource) -> None:
    recipe.assign(
        name,
        source=source,
        format=EXL3,
        method=IMPORT_ENCODED,
        activation_policy="A16Only",
    )
