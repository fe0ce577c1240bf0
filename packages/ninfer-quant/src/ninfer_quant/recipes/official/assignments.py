"""Assignments that several built-in recipes make."""

from __future__ import annotations

from fnmatch import fnmatchcase

from ninfer_quant.errors import RecipeError
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.model import Model
from ninfer_quant.recipes.official.formats import Q4, Q5, Q6, Q8

DELTA_NET_CONTROLS = "text/layers/*/gdn/[ab]_projection"


def require_dense(model: Model) -> None:
    """Raise `RecipeError` if the text model is a mixture of experts."""
    if "intermediate_size" not in model.config:
        raise RecipeError("this recipe is for dense models, the checkpoint is a mixture of experts")


def projections(model: Model, *patterns: str) -> list[str]:
    """Names of projections that match a pattern; none, if the model has no such part."""
    return [
        parameter.name
        for parameter in model.parameters.values()
        if parameter.is_projection
        and any(fnmatchcase(parameter.name, pattern) for pattern in patterns)
    ]


def quantize(recipe: Recipe, names: list[str], format: str) -> None:
    """Store the named matrices in a grouped integer format."""
    if names:
        recipe.assign(names, format=format, method="grouped_absmax")


def configure_optional(model: Model, recipe: Recipe) -> None:
    """Assign everything beside the text model: the vision tower and the MTP layer."""
    quantize(recipe, projections(model, "vision/*"), Q5)
    quantize(recipe, projections(model, "vision/patch_embedding"), Q6)
    quantize(recipe, projections(model, "vision/merger/*"), Q8)
    attention = [f"vision/layers/*/attention/{role}" for role in ("query", "key", "value")]
    quantize(recipe, projections(model, *attention, "vision/layers/*/mlp/fc1"), Q4)
    quantize(recipe, projections(model, "mtp/*"), Q8)


def configure_dense_text(model: Model, recipe: Recipe, *, vocabulary: str, gate_up: str) -> None:
    """Assign the text model: least bits where errors matter least.

    Args:
        model: A dense model.
        recipe: Its recipe.
        vocabulary: Format of the token embedding and the output head.
        gate_up: Format of the MLP's gate and up matrices.
    """
    require_dense(model)
    quantize(recipe, projections(model, "text/layers/*"), Q5)
    mixers = [f"text/layers/*/{mixer}" for mixer in ("attention", "gdn")]
    keys = [f"{mixer}/{role}" for mixer in mixers for role in ("query", "key")]
    quantize(recipe, projections(model, *keys), Q4)
    mlp = projections(model, "text/layers/*/mlp/gate", "text/layers/*/mlp/up")
    quantize(recipe, mlp, gate_up)
    quantize(recipe, ["text/token_embedding", "text/output_head"], vocabulary)
    keep_controls_direct(model, recipe)


def keep_controls_direct(model: Model, recipe: Recipe) -> None:
    """Store the decay and write projections of Gated DeltaNet as bf16, each in its own object."""
    controls = projections(model, DELTA_NET_CONTROLS)
    if controls:
        recipe.assign(controls, format="bf16", method="cast_direct")
        recipe.separate(controls)


def allow_a8_mlp(model: Model, recipe: Recipe) -> None:
    """Let a runtime multiply the Q4 gate and up matrices with 8-bit activations."""
    mlp = projections(model, "text/layers/*/mlp/gate", "text/layers/*/mlp/up")
    recipe.assign(mlp, activation_policy="AllowA8")
