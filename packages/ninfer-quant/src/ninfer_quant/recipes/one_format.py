"""A recipe that stores chosen matrices in one format and leaves the rest as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_format.errors import CheckpointError
from ninfer_format.layouts import LAYOUTS
from ninfer_quant.calibration.records import CalibrationFile
from ninfer_quant.errors import RecipeError
from ninfer_quant.methods.calibrated_input import CALIBRATION
from ninfer_quant.recipes.api import ACTIVATION_INPUT_DIVISOR, Recipe
from ninfer_quant.recipes.loading import LoadedRecipe
from ninfer_quant.recipes.model import Model, Parameter
from ninfer_quant.recipes.selection import AuxiliaryValue, UseSettings
from ninfer_quant.sources.store import WeightStore

SENSITIVE = ("a_projection", "b_projection", "router", "shared_score", "output_head")
"""Last parts of the names of projections that are chosen only by name or pattern."""
_ACTIVATION_RANGE = np.float32(6 * 448)


@dataclass(frozen=True, slots=True)
class OneFormat:
    """What to store how.

    Attributes:
        format: Numeric format.
        method: Name of the method.
        parameters: What the method is told.
        selectors: Names and shell patterns; patterns choose among projections. Without any, all
            projections of the text model that the format can store, but for `SENSITIVE` ones.
        divisors: A calibration, if the uses shall permit activations of 4 bits.
    """

    format: str
    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    selectors: Sequence[str] = ()
    divisors: Path | None = None

    def as_recipe(self, label: str) -> LoadedRecipe:
        """The recipe, under the name that reports call it by."""
        return LoadedRecipe(label, self._configure)

    def _configure(self, model: Model, recipe: Recipe, sources: Mapping[str, WeightStore]) -> None:
        names = self._chosen(model, recipe)
        recipe.assign(
            names,
            format=self.format,
            layout="auto",
            method=self.method,
            parameters=self.parameters,
        )
        if CALIBRATION in self.parameters:
            _separate_inputs(model, recipe, names)
        known = None if self.divisors is None else CalibrationFile(self.divisors)
        for name in names:
            for use in model.parameters[name].inputs:
                recipe.uses[name, use] = _settings(known, use)
        if known is not None and not any(recipe.uses[key].auxiliaries for key in recipe.uses):
            raise CheckpointError("the calibration has none of the inputs", path=known.path)

    def _chosen(self, model: Model, recipe: Recipe) -> list[str]:
        if not self.selectors:
            names = [name for name, found in model.parameters.items() if self._is_default(found)]
            if not names:
                raise RecipeError(f"no projection of the text model fits {self.format}")
            return [name for name in names if name not in recipe.aliases]
        chosen: dict[str, None] = {}
        for selector in self.selectors:
            matched = recipe.match(selector)
            names = [
                name for name in matched if name == selector or model.parameters[name].is_projection
            ]
            if not names:
                raise RecipeError(
                    f"selector {selector!r} matches no projection",
                    hint="give the full name of a parameter that is none",
                )
            chosen.update(dict.fromkeys(names))
        return list(chosen)

    def _is_default(self, parameter: Parameter) -> bool:
        layout = next(item for item in LAYOUTS.values() if self.format in item.formats)
        return (
            parameter.is_projection
            and parameter.residency == "text"
            and parameter.name.rsplit("/", 1)[-1] not in SENSITIVE
            and len(parameter.shape) == 2
            and parameter.shape[0] % layout.row_block == 0
            and parameter.shape[1] % layout.column_block == 0
        )


def _separate_inputs(model: Model, recipe: Recipe, names: Sequence[str]) -> None:
    """Keep parameters with different inputs apart: a calibrated method looks at one input."""
    for group in model.packing_groups:
        chosen = [name for name in group if name in names]
        if len({model.parameters[name].inputs for name in chosen}) > 1:
            recipe.separate(chosen)


def _settings(known: CalibrationFile | None, use: str) -> UseSettings:
    """Settings of a use: without a calibrated input, activations keep 16 bits."""
    if known is None or use not in known.inputs:
        return UseSettings()
    amax = known.amax(use)
    if amax == 0:
        return UseSettings()
    divisor = AuxiliaryValue(np.array(_ACTIVATION_RANGE / amax, np.float32))
    return UseSettings("AllowA4", {ACTIVATION_INPUT_DIVISOR: divisor})
