"""Planning a conversion whose source is an artifact: what a recipe does not change stays."""

from __future__ import annotations

import time

from ninfer_format import Artifact
from ninfer_quant.pipeline.conversion import Conversion, ConversionRequest
from ninfer_quant.pipeline.prepare import prepare
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.kept_artifact import group_as_stored, keep_as_stored
from ninfer_quant.resources.collect import Resources
from ninfer_quant.resources.tokenizer import count_public_tokens
from ninfer_quant.sources.artifact_model import artifact_model
from ninfer_quant.sources.artifact_store import ArtifactStore
from ninfer_quant.sources.named import BASE


def plan_requantization(request: ConversionRequest) -> Conversion:
    """Place every parameter of an artifact anew.

    Components, resources and uses are kept. The recipe starts from everything as it is stored.

    Args:
        request: What the user asks for; the model is the entry file of an artifact, which also
            determines the components and the resources.

    Raises:
        ArtifactError: The artifact is damaged.
        ConversionError: It holds something that cannot be kept.
        RecipeError: The recipe asks for something that cannot be done.
    """
    started = time.perf_counter()
    store = ArtifactStore(request.model)
    model = artifact_model(store)
    resources = _resources(store.artifact)
    model.token_count = resources.public_tokens
    recipe = Recipe(model)
    keep_as_stored(recipe, store.artifact)
    request.recipe.apply(model, recipe, {BASE: store})
    for loaded in request.overrides:
        loaded.apply(model, recipe, {BASE: store})
    group_as_stored(recipe, store.artifact)
    return Conversion(
        request,
        request.name or store.artifact.name or request.model.stem,
        {BASE: store},
        model,
        resources,
        {},
        prepare(recipe, rows_per_chunk=request.rows_per_chunk, device=request.device),
        (),
        time.perf_counter() - started,
    )


def _resources(artifact: Artifact) -> Resources:
    components = artifact.directory.components
    data = {
        name: {role: artifact.resource(name, role) for role in component.resources}
        for name, component in components.items()
        if component.resources
    }
    text, config = data.get("text", {}), components["text"].config
    tokens = int(config["vocab_size"])
    if {"tokenizer.json", "tokenizer_config.json"} <= text.keys():
        tokens = count_public_tokens(text["tokenizer.json"], text["tokenizer_config.json"], tokens)
    return Resources(data, (), tokens)
