"""Refusing checkpoints that hold words of a quantizer where the recipe expects weights."""

from __future__ import annotations

from collections.abc import Sequence

from ninfer_format import SafetensorsCheckpoint
from ninfer_format.errors import CheckpointError
from ninfer_quant.recipes.api import Recipe

QUANTIZER_SUFFIXES = (
    "input_scale",
    "_scale",
    "_scale_inv",
    "_scale_2",
    "_global_scale",
    "_zero_point",
)
"""How quantizers name what belongs to the words of a weight."""

WEIGHT_DTYPES = ("float16", "bfloat16", "float32", "float64")
"""Types whose values are weights and not words that a scale has still to be applied to."""


def refuse_quantized(
    checkpoint: SafetensorsCheckpoint, recipe: Recipe, unused: Sequence[str]
) -> None:
    """Check that every value that will be stored is a weight.

    Args:
        checkpoint: Where the tensors are.
        recipe: A recipe after all its calls.
        unused: Tensors that nothing reads.

    Raises:
        CheckpointError: There are scales that nothing reads, or weights of a type that is no
            weight's; all of them are named.
    """
    found = {name: name for name in unused if name.endswith(QUANTIZER_SUFFIXES)}
    for name, selections in recipe.selections.items():
        for selection in selections if name not in recipe.aliases else ():
            dtype = selection.source.dtype
            # Integers are what an int32 object is made of.
            is_integer = selection.encoding.format == "int32" and dtype.kind in "iu"
            if dtype.name not in WEIGHT_DTYPES and not is_integer:
                label = selection.source.label
                found[label] = f"{label} of type {dtype.name}"
    if found:
        raise CheckpointError(
            f"tensors of a quantizer would not be understood ({len(found)}): "
            f"{', '.join(found.values())}",
            path=checkpoint.path,
            tensors=tuple(found),
            hint="convert the checkpoint that was quantized, or let a recipe assign sources that "
            "apply the scales and name their tensors",
        )
