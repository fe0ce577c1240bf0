"""Refusing checkpoints that hold words of a quantizer which would not be understood."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from fnmatch import fnmatchcase

from ninfer_format.errors import CheckpointError
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.sources.checkpoint import used_tensors
from ninfer_quant.sources.store import WeightStore
from ninfer_runtime.models.architecture import Architecture

QUANTIZER_SUFFIXES = (
    "_scale",
    "_scale_inv",
    "_scale_2",
    "_scale_3",
    "_global_scale",
    "_zero_point",
    "_g_idx",
)
"""How quantizers name what belongs to the words of a weight."""

WEIGHT_DTYPES = ("float16", "bfloat16", "float32", "float64")
"""Types whose values are weights and not words that a scale has still to be applied to."""


def refuse_quantized(
    stores: Iterable[WeightStore], architecture: Architecture, recipe: Recipe
) -> list[str]:
    """Check that every value that will be stored is a weight, and that no scale is left over.

    A scale belongs to the weights of the same module. It may be left over only if none of them is
    read either, or if the recipe ignores it.

    Args:
        stores: Everything that was opened, the model's own checkpoint first.
        architecture: Knows which component a tensor belongs to.
        recipe: A recipe after all its calls.

    Returns:
        Names of the tensors that the recipe ignores.

    Raises:
        CheckpointError: There are scales that nothing reads, or weights of a type that is no
            weight's; all of them are named.
    """
    stores = list(stores)
    found = _words_taken_for_weights(recipe)
    path = stores[0].path
    ignored: list[str] = []
    for store in stores:
        for name in _left_over(store, recipe):
            if architecture.tensor_component(name) not in recipe.model.components:
                continue
            if any(fnmatchcase(name, pattern) for pattern in recipe.ignored):
                ignored.append(name)
            else:
                path = path if found else store.path
                found[name] = name
    if found:
        raise CheckpointError(
            f"tensors of a quantizer would not be understood ({len(found)}): "
            f"{', '.join(found.values())}",
            path=path,
            tensors=tuple(found),
            hint="let a recipe assign sources that apply the scales and name their tensors, or "
            "call recipe.ignore() for what is not needed",
        )
    return ignored


def _words_taken_for_weights(recipe: Recipe) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, selections in recipe.selections.items():
        for selection in selections if name not in recipe.aliases else ():
            dtype = selection.source.dtype
            # Integers are what an int32 object is made of.
            is_integer = selection.encoding.format == "int32" and dtype.kind in "iu"
            if dtype.name not in WEIGHT_DTYPES and not is_integer:
                label = selection.source.label
                found[label] = f"{label} of type {dtype.name}"
    return found


def _left_over(store: WeightStore, recipe: Recipe) -> list[str]:
    """Scales that nothing reads and that belong to something that is read, or to nothing."""
    used = used_tensors(store, recipe)
    scales = [name for name in store.stored_names if name.endswith(QUANTIZER_SUFFIXES)]
    if not scales:
        return []
    weights: dict[str, list[str]] = defaultdict(list)
    for name in store.stored_names:
        if not name.endswith(QUANTIZER_SUFFIXES):
            weights[_module(name)].append(name)
    return [name for name in scales if name not in used and _matters(name, weights, used)]


def _matters(name: str, weights: dict[str, list[str]], used: set[str]) -> bool:
    beside = weights.get(_module(name), [])
    return not beside or any(weight in used for weight in beside)


def _module(name: str) -> str:
    return name.rpartition(".")[0]
