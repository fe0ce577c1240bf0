"""The runtime's formats for synthetic weights are those that the recipes give the real geometries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.quant.test_official_plans import (
    CONFIG_27B,
    CONFIG_35B,
    PREFIX,
    V,
    fp8,
    layer_modules,
    layer_rest,
    nvfp4,
    plain,
    write_holes,
)

from ninfer_format.errors import UsageError
from ninfer_quant.cli.plan_table import plan_document
from ninfer_quant.pipeline.conversion import ConversionRequest, plan_conversion
from ninfer_quant.recipes.loading import load_recipe
from ninfer_runtime.models.qwen3_5.architecture import ARCHITECTURE
from ninfer_runtime.weights.recipe_formats import RECIPES, recipe_formats

CONFIGS = dict.fromkeys(RECIPES, CONFIG_27B) | {"qwen3_6_35b_a3b": CONFIG_35B}


def quantized_27b(folder: Path) -> Path:
    """The imported source of qwen3_8_27b_nvfp4."""
    tensors = [plain(f"{PREFIX}norm.weight", 5120), *fp8("lm_head", V, 5120)]
    for layer in range(64):
        tensors += layer_rest(layer)
        for module, N, K in layer_modules(layer):
            is_block_scaled = ".mlp." in module and layer < 56
            tensors += (nvfp4 if is_block_scaled else fp8)(module, N, K)
    return write_holes(folder, tensors)


def planned_formats(folder: Path, recipe: str, config: dict[str, Any]) -> dict[str, str]:
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    imports = recipe.endswith("nvfp4")
    request = ConversionRequest(
        model=model,
        recipe=load_recipe(recipe),
        components=("text",),
        sources={"quantized": str(quantized_27b(folder / "quantized"))} if imports else {},
    )
    document = plan_document(plan_conversion(request, needs_weights=False))
    return {row["parameter"]: row["format"] for row in document["assignments"]}


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_parameter_has_the_format_of_the_recipe(tmp_path: Path, recipe: str):
    config = CONFIGS[recipe]
    parameters = ARCHITECTURE.parameters(ARCHITECTURE.component_configs(config, ("text",)))
    assert recipe_formats(recipe, parameters) == planned_formats(tmp_path, recipe, config)


def test_an_unknown_recipe_is_refused():
    with pytest.raises(UsageError, match="recipe 'mine'") as caught:
        recipe_formats("mine", ())
    assert "qwen3_6_27b" in str(caught.value.hint)
