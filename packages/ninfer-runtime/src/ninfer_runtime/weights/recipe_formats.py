"""Which format the built-in recipes of the converter give each parameter of the text model.

Only what speed depends on: a converter packs, imports and quantizes besides. A test compares with the
recipes themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from ninfer_format.errors import UsageError
from ninfer_runtime.models.architecture import LogicalParameter

BF16 = "bf16"
Q4 = "q4_g64_fp16"
Q5 = "q5_g64_fp16"
Q6 = "q6_g64_fp16"
Q8 = "q8_g32_fp16"
FP8 = "fp8_e4m3fn_row_bf16"
NVFP4 = "nvfp4"

EMBEDDING = "text/token_embedding"
HEAD = "text/output_head"

Assignments = tuple[tuple[str, str], ...]
"""Patterns of names and formats; of those that match a matrix the last one counts."""

_CONTROLS: Assignments = (
    ("*/gdn/[ab]_projection", BF16),
    ("*/moe/router", BF16),
    ("*/moe/shared_score", BF16),
)


def _dense(vocabulary: str) -> Assignments:
    return (
        ("text/layers/*", Q5),
        ("*/attention/query", Q4),
        ("*/attention/key", Q4),
        ("*/gdn/query", Q4),
        ("*/gdn/key", Q4),
        ("*/mlp/gate", Q4),
        ("*/mlp/up", Q4),
        (EMBEDDING, vocabulary),
        (HEAD, vocabulary),
        *_CONTROLS,
    )


RECIPES: dict[str, Assignments] = {
    "qwen3_6_27b": _dense(Q6),
    "qwen3_8_27b": _dense(Q8),
    "qwen3_8_27b_bf16": (),
    "qwen3_8_27b_nvfp4": (
        ("text/*", FP8),
        *((f"text/layers/{layer}/mlp/*", NVFP4) for layer in range(56)),
        *_CONTROLS,
    ),
    "qwen3_6_35b_a3b": (
        ("text/layers/*", Q8),
        ("*/moe/experts/*/gate", Q4),
        ("*/moe/experts/*/up", Q4),
        ("*/moe/experts/*/down", Q5),
        *((f"text/layers/{layer}/moe/experts/*/down", Q6) for layer in (34, 38, 39)),
        (EMBEDDING, Q8),
        (HEAD, Q6),
        *_CONTROLS,
    ),
}
"""Assignments by the name of the recipe."""


def recipe_formats(recipe: str, parameters: Sequence[LogicalParameter]) -> Mapping[str, str]:
    """The format of each parameter.

    Raises:
        UsageError: There are no assignments of this name.
    """
    if recipe not in RECIPES:
        raise UsageError(
            f"no formats are known of recipe {recipe!r}", hint=f"known are {', '.join(RECIPES)}"
        )
    assignments = RECIPES[recipe]
    return {parameter.name: _format(parameter, assignments) for parameter in parameters}


def _format(parameter: LogicalParameter, assignments: Assignments) -> str:
    found: str = parameter.storage_format
    if parameter.is_projection or parameter.name == EMBEDDING:
        for pattern, assigned in assignments:
            if fnmatchcase(parameter.name, pattern):
                found = assigned
    return found
