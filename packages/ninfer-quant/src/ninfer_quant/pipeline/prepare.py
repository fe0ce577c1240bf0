"""From the decisions of a recipe to parent objects, bindings and uses; no weight is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ninfer_format import Binding, Part, Use, get_format
from ninfer_format.dtypes import NVFP4, DirectFormat
from ninfer_format.errors import NInferError
from ninfer_format.layouts import get_layout
from ninfer_quant.array_module import Device
from ninfer_quant.errors import RecipeError
from ninfer_quant.methods.registry import find_method
from ninfer_quant.methods.request import (
    AuxiliaryKey,
    MethodInput,
    MethodJob,
    MethodRequest,
    Target,
)
from ninfer_quant.pipeline.imported_words import stacking
from ninfer_quant.pipeline.parents import layout_of, method_name, parents_of
from ninfer_quant.recipes.api import ACTIVATION_INPUT_DIVISOR, Recipe
from ninfer_quant.recipes.selection import AuxiliaryValue, Encoding, Selection


@dataclass(frozen=True, eq=False, slots=True)
class WeightObject:
    """A parent object and how to fill it.

    Attributes:
        target: Id, shape, format and layout.
        selections: Its parts in element order.
        method_name: What the report calls the method.
        request: Reads the values.
        job: Writes the words.
    """

    target: Target
    selections: tuple[Selection, ...]
    method_name: str
    request: MethodRequest
    job: MethodJob


@dataclass(frozen=True, eq=False, slots=True)
class AuxiliaryObject:
    """A small direct tensor that one use needs."""

    target: Target
    value: AuxiliaryValue


@dataclass(frozen=True, eq=False, slots=True)
class Preparation:
    """Everything that will be written beside the resources.

    Attributes:
        weights: Parent objects in emission order.
        auxiliaries: Objects of uses, after the weights.
        bindings: Where every parameter lies, in parameter order.
        uses: Every (parameter, input), in parameter order.
        shared: Parameters without objects of their own, with the parameter whose data they are
            bound to.
    """

    weights: tuple[WeightObject, ...]
    auxiliaries: tuple[AuxiliaryObject, ...]
    bindings: Mapping[str, Binding]
    uses: tuple[Use, ...]
    shared: Mapping[str, str]


def prepare(recipe: Recipe, *, rows_per_chunk: int, device: Device = "cpu") -> Preparation:
    """Pack the selections of a recipe into parents and plan their methods.

    Args:
        recipe: A recipe after all its calls.
        rows_per_chunk: Most rows that a method holds in memory at once.
        device: Where methods compute.

    Raises:
        RecipeError: Members of a parent do not fit together, or a method refuses its target; the
            names of the parameters come first.
    """
    parents = parents_of(recipe)
    weights = tuple(
        _weight_object(recipe, f"weight/{index:06d}", members, shape, rows_per_chunk, device)
        for index, (members, shape) in enumerate(parents)
    )
    values = _auxiliary_values(recipe, weights)
    _check_divisors(recipe, weights, values)
    auxiliaries = tuple(
        _auxiliary_object(f"auxiliary/{index:06d}", value)
        for index, value in enumerate(values.values())
    )
    ids = {key: item.target.id for key, item in zip(values, auxiliaries, strict=True)}
    return Preparation(
        weights,
        auxiliaries,
        _bindings(recipe, weights),
        _uses(recipe, ids),
        {name: _owner(recipe, name) for name in recipe.model.parameters if name in recipe.aliases},
    )


def _weight_object(
    recipe: Recipe,
    object_id: str,
    members: tuple[Selection, ...],
    shape: tuple[int, ...] | None,
    rows_per_chunk: int,
    device: Device,
) -> WeightObject:
    names = tuple(member.parameter for member in members)
    encoding = members[0].encoding
    try:
        _check_residency(recipe, names)
        layout = layout_of(encoding)
        if encoding.format not in get_layout(layout).formats:
            raise RecipeError(f"layout {layout} does not store format {encoding.format}")
        shape = shape or _parent_shape([_member_shape(member) for member in members], encoding)
        divisors, bitrate_half_bits = stacking(members)
        target = Target(
            object_id,
            shape,
            encoding.format,
            layout,
            divisors=divisors,
            bitrate_half_bits=bitrate_half_bits,
        )
        request = MethodRequest(
            target,
            tuple(_method_input(recipe, member) for member in members),
            parameters=encoding.parameters,
            rows_per_chunk=rows_per_chunk,
            device=device,
            auxiliary_overrides=_explicit_auxiliaries(recipe, names),
        )
        method = encoding.method
        plan = find_method(method).plan if isinstance(method, str) else method
        job = plan(request)
    except NInferError as error:
        raise RecipeError(str(error), parameters=names, hint=error.hint) from error
    return WeightObject(target, members, method_name(method), request, job)


def _check_residency(recipe: Recipe, names: Sequence[str]) -> None:
    residencies = {recipe.model.parameters[name].residency for name in names}
    if len(residencies) > 1:
        raise RecipeError(f"one object cannot belong to several of {sorted(residencies)}")


def _member_shape(member: Selection) -> tuple[int, ...]:
    shape = member.source.shape
    return shape if member.rows is None else (member.rows[1] - member.rows[0], *shape[1:])


def _parent_shape(shapes: Sequence[tuple[int, ...]], encoding: Encoding) -> tuple[int, ...]:
    is_direct = isinstance(get_format(encoding.format), DirectFormat)
    first = shapes[0]
    if len(shapes) == 1:
        if is_direct or len(first) == 2:
            return first
        return (prod(first[:-1]), first[-1]) if first else (1, 1)
    if all(len(shape) == 1 for shape in shapes):
        elements = sum(shape[0] for shape in shapes)
        return (elements,) if is_direct else (1, elements)
    if all(len(shape) == 2 and shape[1] == first[-1] for shape in shapes):
        return sum(shape[0] for shape in shapes), first[1]
    raise RecipeError(
        f"shapes {[list(shape) for shape in shapes]} have no common parent shape",
        hint="give group() a shape",
    )


def _method_input(recipe: Recipe, member: Selection) -> MethodInput:
    parameter = recipe.model.parameters[member.parameter]
    return MethodInput(
        member.parameter,
        parameter.shape,
        member.first_element,
        member.values(),
        {use: recipe.uses[parameter.name, use].activation_policy for use in parameter.inputs},
    )


def _explicit_auxiliaries(
    recipe: Recipe, names: Sequence[str]
) -> dict[AuxiliaryKey, AuxiliaryValue]:
    return {
        (name, use, role): value
        for name in names
        for use in recipe.model.parameters[name].inputs
        for role, value in recipe.uses[name, use].auxiliaries.items()
    }


def _auxiliary_values(
    recipe: Recipe, weights: Sequence[WeightObject]
) -> dict[AuxiliaryKey, AuxiliaryValue]:
    """All auxiliaries in the order of their uses; what a method adds must not contradict."""
    found = _explicit_auxiliaries(recipe, list(recipe.model.parameters))
    for weight in weights:
        members = set(weight.request.parameter_names)
        for key, value in weight.job.auxiliaries.items():
            name, use, role = key
            if (name, use) not in recipe.uses or name not in members:
                raise RecipeError(
                    f"method {weight.method_name} gave an auxiliary to the unknown use {use!r}",
                    parameters=(name,),
                )
            if key in found and not found[key].equals(value):
                raise RecipeError(f"two values for auxiliary {role} of {use}", parameters=(name,))
            found[key] = value
    order = {use: index for index, use in enumerate(recipe.uses)}
    return dict(sorted(found.items(), key=lambda item: order[item[0][:2]]))


def _check_divisors(
    recipe: Recipe,
    weights: Sequence[WeightObject],
    values: Mapping[AuxiliaryKey, AuxiliaryValue],
) -> None:
    """Refuse uses of nvfp4 that permit A4 without a divisor; shared parameters need their own."""
    block_scaled = {
        member.parameter
        for weight in weights
        if weight.target.format == NVFP4.name
        for member in weight.selections
    }
    for (name, use), settings in recipe.uses.items():
        permits = settings.activation_policy == "AllowA4" and _owner(recipe, name) in block_scaled
        if permits and (name, use, ACTIVATION_INPUT_DIVISOR) not in values:
            raise RecipeError(
                f"AllowA4 of {use} needs an {ACTIVATION_INPUT_DIVISOR}",
                parameters=(name,),
                hint="give use() one, or choose another activation policy",
            )


def _auxiliary_object(object_id: str, value: AuxiliaryValue) -> AuxiliaryObject:
    layout = layout_of(Encoding(value.format))
    return AuxiliaryObject(Target(object_id, value.values.shape, value.format, layout), value)


def _bindings(recipe: Recipe, weights: Sequence[WeightObject]) -> dict[str, Binding]:
    parts: dict[str, list[Part]] = {}
    shapes = {weight.target.id: weight.target.shape for weight in weights}
    for weight in weights:
        begin = 0
        for member in weight.selections:
            end = begin + prod(_member_shape(member))
            parts.setdefault(member.parameter, []).append(Part(weight.target.id, begin, end))
            begin = end
    bindings: dict[str, Binding] = {}
    for name, parameter in recipe.model.parameters.items():
        bound = parts.get(_owner(recipe, name), [])
        if sum(part.end - part.begin for part in bound) != parameter.num_elements:
            raise RecipeError("is not covered by its objects", parameters=(name,))
        is_whole = len(bound) == 1 and shapes[bound[0].object] == parameter.shape
        bindings[name] = Binding(bound[0].object) if is_whole else Binding(parts=tuple(bound))
    return bindings


def _owner(recipe: Recipe, name: str) -> str:
    """The parameter whose data `name` is bound to, itself unless it is shared."""
    while name in recipe.aliases:
        name = recipe.aliases[name]
    return name


def _uses(recipe: Recipe, auxiliary_ids: Mapping[AuxiliaryKey, str]) -> tuple[Use, ...]:
    bound: dict[tuple[str, str], dict[str, Binding]] = {}
    for (name, use, role), object_id in auxiliary_ids.items():
        bound.setdefault((name, use), {})[role] = Binding(object_id)
    return tuple(
        Use(name, use, settings.activation_policy, bound.get((name, use), {}))
        for (name, use), settings in recipe.uses.items()
    )
