"""Assignments that several built-in recipes make."""

from __future__ import annotations

from fnmatch import fnmatchcase

from ninfer_quant.errors import MissingTensorsError, RecipeError
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.model import Model
from ninfer_quant.recipes.official.formats import BF16, Q4, Q5, Q6, Q8
from ninfer_quant.recipes.selection import IMPORT_ENCODED
from ninfer_quant.sources.store import WeightStore

DELTA_NET_CONTROLS = "text/layers/*/gdn/[ab]_projection"
MOE_CONTROLS = ("*/moe/router", "*/moe/shared_score")
DRAFTS = ("dflash", "dflash2")
QUANTIZED = "quantized"
"""Name of the source that imported words come from."""


def require_dense(model: Model) -> None:
    """Raise `RecipeError` if the text model is a mixture of experts."""
    if "intermediate_size" not in model.config:
        raise RecipeError("this recipe is for dense models, the checkpoint is a mixture of experts")


def require_mixture(model: Model) -> None:
    """Raise `RecipeError` unless the text model is a mixture of experts."""
    if "num_experts" not in model.config:
        raise RecipeError("this recipe is for mixtures of experts, the checkpoint is a dense model")


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
    """Assign everything beside the text model: vision tower, MTP layer and block drafters."""
    quantize(recipe, projections(model, "vision/*"), Q5)
    quantize(recipe, projections(model, "vision/patch_embedding"), Q6)
    quantize(recipe, projections(model, "vision/merger/*"), Q8)
    attention = [f"vision/layers/*/attention/{role}" for role in ("query", "key", "value")]
    quantize(recipe, projections(model, *attention, "vision/layers/*/mlp/fc1"), Q4)
    quantize(recipe, projections(model, "mtp/*", *(f"{name}/*" for name in DRAFTS)), Q8)
    keep_direct(
        recipe,
        projections(
            model,
            *(f"mtp/layers/{control}" for control in MOE_CONTROLS),
            *(f"{name}/*/kernel_projection" for name in DRAFTS),
            *(f"{name}/candidate_selector/hidden_projection" for name in DRAFTS),
        ),
    )
    share_draft_context(model, recipe)


def keep_direct(recipe: Recipe, names: list[str]) -> None:
    """Store the named matrices as bf16."""
    if names:
        recipe.assign(names, format=BF16, method="cast_direct")


def share_draft_context(model: Model, recipe: Recipe) -> None:
    """Bind the context projections of block drafters to the matrices that they are."""
    for name in projections(model, *(f"{draft}/*/context_*" for draft in DRAFTS)):
        recipe.share(name, name.replace("/context_", "/"))


def import_words(
    model: Model, recipe: Recipe, names: list[str], store: WeightStore, format: str, policy: str
) -> None:
    """Take the words of the named matrices, which must be encoded in `format`, from a store.

    Raises:
        MissingTensorsError: The store lacks tensors; all of them are named.
    """
    missing: dict[str, None] = {}
    for name in names:
        try:
            source = model.source(name, store, format)
        except MissingTensorsError as error:
            missing |= dict.fromkeys(error.tensors)
            continue
        recipe.assign(
            name,
            source=source,
            format=format,
            method=IMPORT_ENCODED,
            activation_policy=policy,
        )
    if missing:
        raise MissingTensorsError(
            f"tensors are missing ({len(missing)}): {', '.join(missing)}",
            path=store.path,
            tensors=tuple(missing),
        )


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


SENSITIVE_DOWN_LAYERS = (34, 38, 39)
"""Layers of the 35B model whose experts lose most in their down matrices."""


def configure_mixture_text(model: Model, recipe: Recipe) -> None:
    """Assign the text model of a mixture: few bits for experts, many for what all tokens use."""
    require_mixture(model)
    quantize(recipe, projections(model, "text/layers/*"), Q8)
    experts = "text/layers/*/moe/experts/*"
    quantize(recipe, projections(model, f"{experts}/gate", f"{experts}/up"), Q4)
    quantize(recipe, projections(model, f"{experts}/down"), Q5)
    sensitive = [f"text/layers/{layer}/moe/experts/*/down" for layer in SENSITIVE_DOWN_LAYERS]
    quantize(recipe, projections(model, *sensitive), Q6)
    controls = [f"text/layers/{control}" for control in MOE_CONTROLS]
    keep_direct(recipe, projections(model, DELTA_NET_CONTROLS, *controls))
    quantize(recipe, ["text/token_embedding"], Q8)
    quantize(recipe, ["text/output_head"], Q6)


def keep_controls_direct(model: Model, recipe: Recipe) -> None:
    """Store the decay and write projections of Gated DeltaNet as bf16, each in its own object."""
    controls = projections(model, DELTA_NET_CONTROLS)
    if controls:
        keep_direct(recipe, controls)
        recipe.separate(controls)


def allow_a8_mlp(model: Model, recipe: Recipe) -> None:
    """Let a runtime multiply the Q4 gate and up matrices with 8-bit activations."""
    mlp = projections(model, "text/layers/*/mlp/gate", "text/layers/*/mlp/up")
    recipe.assign(mlp, activation_policy="AllowA8")
