"""Which selections of a recipe share an object.

Objects come from the groups that the recipe asks for, then from the model's packing groups in their
order, so that the widest compatible one wins, then one for every selection that is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from ninfer_format.layouts import LAYOUTS
from ninfer_quant.errors import RecipeError
from ninfer_quant.methods.request import Method
from ninfer_quant.pipeline.imported_words import may_be_packed
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.selection import AUTO_LAYOUT, Encoding, Selection

Parent = tuple[tuple[Selection, ...], tuple[int, ...] | None]
"""Selections in element order, and the shape if the recipe gave one."""


def parents_of(recipe: Recipe) -> list[Parent]:
    """The objects of a recipe in the order in which they are written.

    Raises:
        RecipeError: Members of a group are shared, split or encoded in different ways.
    """
    parents: list[Parent] = []
    used: set[str] = set()
    for group in recipe.groups:
        parents.append((_explicit_members(recipe, group.parameters), group.shape))
        used.update(group.parameters)
    for names in recipe.model.packing_groups:
        members = _packed_members(recipe, names, used)
        if members is not None:
            parents.append((members, None))
            used.update(names)
    parents.extend(
        ((selection,), None)
        for name, selections in recipe.selections.items()
        if name not in used and name not in recipe.aliases
        for selection in selections
    )
    return parents


def _explicit_members(recipe: Recipe, names: Sequence[str]) -> tuple[Selection, ...]:
    for name in names:
        if name in recipe.aliases:
            raise RecipeError("is shared and cannot be grouped", parameters=(name,))
        if len(recipe.selections[name]) > 1:
            raise RecipeError("is split by rows and cannot be grouped", parameters=(name,))
    members = tuple(recipe.selections[name][0] for name in names)
    first = members[0].encoding
    for member in members[1:]:
        if not _alike(first, member.encoding):
            raise RecipeError(
                f"grouped parameters must be encoded alike: {_described(first)} and, for "
                f"{member.parameter}, {_described(member.encoding)}",
                parameters=tuple(names),
            )
    return members


def _packed_members(
    recipe: Recipe, names: Sequence[str], used: set[str]
) -> tuple[Selection, ...] | None:
    for name in names:
        if name in used or name in recipe.aliases or name in recipe.separated:
            return None
        if len(recipe.selections[name]) > 1:
            return None
    members = tuple(recipe.selections[name][0] for name in names)
    first = members[0].encoding
    # A custom method may depend on what else is in its parent, so it is never packed unasked.
    if not isinstance(first.method, str):
        return None
    if not all(_alike(first, member.encoding) for member in members[1:]):
        return None
    return members if may_be_packed(members) else None


def _alike(first: Encoding, second: Encoding) -> bool:
    return (
        first.format == second.format
        and layout_of(first) == layout_of(second)
        and first.method == second.method
        and first.parameters == second.parameters
    )


def layout_of(encoding: Encoding) -> str:
    """The storage layout of an encoding, with ``auto`` replaced by the format's own."""
    if encoding.layout != AUTO_LAYOUT:
        return encoding.layout
    return next(layout.name for layout in LAYOUTS.values() if encoding.format in layout.formats)


def _described(encoding: Encoding) -> str:
    return f"{encoding.format} in {layout_of(encoding)} by {method_name(encoding.method)}"


def method_name(method: str | Method) -> str:
    """What reports call a method."""
    if isinstance(method, str):
        return method
    # A colon keeps a function of a recipe file apart from the built-in names.
    function = method if hasattr(method, "__qualname__") else type(method)
    return f"{function.__module__}:{function.__qualname__}"
