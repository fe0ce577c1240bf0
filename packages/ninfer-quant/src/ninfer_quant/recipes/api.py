"""The calls that a recipe makes.

A recipe is a function ``configure(model, recipe, sources)``. It starts from one selection per
parameter: the whole of it, in its direct format, by ``cast_direct``, with every use ``A16Only``;
and says what shall be otherwise. Nothing is read or computed here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise
from math import isfinite
from typing import Any

import numpy as np

from ninfer_format import get_format, get_layout
from ninfer_format.container.schema import ActivationPolicy
from ninfer_format.errors import ArtifactError
from ninfer_quant.errors import RecipeError
from ninfer_quant.methods.registry import find_method
from ninfer_quant.methods.request import Method
from ninfer_quant.recipes.model import Model
from ninfer_quant.recipes.selection import (
    ACTIVATION_POLICIES,
    AUTO_LAYOUT,
    AuxiliaryValue,
    Encoding,
    Group,
    Selection,
    UseSettings,
)
from ninfer_quant.sources.logical import LogicalSource

Selectors = str | Iterable[str]
"""A parameter name, a shell pattern over whole names, or several of them."""

ACTIVATION_INPUT_DIVISOR = "activation_input_divisor"


class Recipe:
    """The decisions of a recipe over one model.

    Attributes:
        model: The model.
        selections: Row ranges of every parameter, in row order, with how they are encoded.
        aliases: Parameters that are bound to the data of another, by name.
        separated: Parameters that never share a parent by a packing group.
        groups: Parents that the recipe asks for, in order.
        uses: Settings of every (parameter, input).
        ignored: Patterns of tensors of a quantizer that are not needed.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.selections: dict[str, list[Selection]] = {}
        self.aliases: dict[str, str] = {}
        self.separated: set[str] = set()
        self.groups: list[Group] = []
        self.uses: dict[tuple[str, str], UseSettings] = {}
        self.ignored: list[str] = []
        for name in model.parameters:
            self.add_parameter(name)

    def add_parameter(self, name: str) -> None:
        """Start with a parameter that has been added to the model.

        Raises:
            RecipeError: The model has no such parameter, or the recipe has it already.
        """
        if name not in self.model.parameters or name in self.selections:
            raise RecipeError(f"{name!r} is no new parameter of the model")
        parameter = self.model.parameters[name]
        rows = (0, parameter.shape[0]) if parameter.shape else None
        encoding = Encoding(parameter.storage_format)
        self.selections[name] = [Selection(name, rows, parameter.source, encoding)]
        for use in parameter.inputs:
            self.uses[name, use] = UseSettings()

    def ignore(self, patterns: str | Iterable[str]) -> None:
        """Leave out tensors that a quantizer has put beside its weights, for example cache scales.

        Without this, tensors that look like scales and that nothing reads are an error.

        Args:
            patterns: Shell patterns over names of tensors, case-sensitive.
        """
        self.ignored += [patterns] if isinstance(patterns, str) else patterns

    def match(self, selectors: Selectors) -> tuple[str, ...]:
        """Names that the selectors stand for, each once, in the order they are met.

        An exact name wins over its reading as a pattern; patterns are case-sensitive.

        Raises:
            RecipeError: A selector matches nothing.
        """
        names: dict[str, None] = {}
        for selector in [selectors] if isinstance(selectors, str) else selectors:
            found = self._match_one(selector)
            if not found:
                raise RecipeError(f"selector {selector!r} matches no parameter")
            names.update(dict.fromkeys(found))
        if not names:
            raise RecipeError("no selector was given")
        return tuple(names)

    def _match_one(self, selector: str) -> list[str]:
        if selector in self.model.parameters:
            return [selector]
        return [name for name in self.model.parameters if fnmatchcase(name, selector)]

    def assign(
        self,
        selectors: Selectors,
        *,
        format: str | None = None,
        layout: str | None = None,
        method: str | Method | None = None,
        source: LogicalSource | None = None,
        parameters: Mapping[str, Any] | None = None,
        activation_policy: str | None = None,
        rows: tuple[int, int] | None = None,
    ) -> None:
        """Say how the selected parameters are stored; what is not given stays as it is.

        Args:
            selectors: Which parameters.
            format: Numeric format. It does not change the method.
            layout: Storage layout, or ``auto`` for the format's own.
            method: Name of a registered method, or a method itself.
            source: Other values of the same shape.
            parameters: What the method is told; JSON values.
            activation_policy: Permitted activation precision of all uses of the parameters.
            rows: Half-open range of rows; what was one selection is split there.

        Raises:
            RecipeError: A selector matches nothing, or an argument does not fit.
        """
        encoding_changes = _checked_encoding(format, layout, method, parameters)
        policy = None if activation_policy is None else _checked_policy(activation_policy)
        for name in self.match(selectors):
            if encoding_changes or source is not None or rows is not None:
                self._change(name, encoding_changes, source, rows)
            if policy is not None:
                for use in self.model.parameters[name].inputs:
                    settings = replace(self.uses[name, use], activation_policy=policy)
                    self.uses[name, use] = settings

    def _change(
        self,
        name: str,
        encoding_changes: Mapping[str, Any],
        source: LogicalSource | None,
        rows: tuple[int, int] | None,
    ) -> None:
        shape = self.model.parameters[name].shape
        if source is not None and source.shape != shape:
            raise RecipeError(
                f"source {source.label} has shape {list(source.shape)}, expected {list(shape)}",
                parameters=(name,),
            )
        if rows is not None:
            _check_rows(name, rows, shape)
        changed: list[Selection] = []
        for selection in self.selections[name]:
            for piece in _split(selection, rows):
                if rows is None or _is_inside(piece.rows, rows):
                    encoding = replace(piece.encoding, **encoding_changes)
                    piece = replace(piece, encoding=encoding, source=source or piece.source)
                changed.append(piece)
        self.selections[name] = changed
        self.aliases.pop(name, None)

    def use(
        self,
        parameter: str,
        input: str,
        *,
        activation_policy: str | None = None,
        auxiliaries: Mapping[str, AuxiliaryValue | float | bytes] | None = None,
    ) -> None:
        """Say what one mathematical use of a parameter permits and needs.

        Args:
            parameter: Name of the parameter.
            input: One of its inputs.
            activation_policy: Permitted activation precision.
            auxiliaries: Extra inputs by role. For ``activation_input_divisor`` a positive number
                or the four bytes of a little-endian binary32 will do.

        Raises:
            RecipeError: There is no such use, or a value does not fit.
        """
        if (parameter, input) not in self.uses:
            known = [use for name, use in self.uses if name == parameter]
            raise RecipeError(
                f"has no use {input!r}, its uses are {known}", parameters=(parameter,)
            )
        settings = self.uses[parameter, input]
        if activation_policy is not None:
            policy = _checked_policy(activation_policy)
            settings = replace(settings, activation_policy=policy)
        if auxiliaries is not None:
            values = {role: _auxiliary(role, value) for role, value in auxiliaries.items()}
            settings = replace(settings, auxiliaries={**settings.auxiliaries, **values})
        self.uses[parameter, input] = settings

    def separate(self, selectors: Selectors) -> None:
        """Keep the selected parameters out of the model's packing groups."""
        self.separated.update(self.match(selectors))

    def group(self, selectors: Selectors, *, shape: Sequence[int] | None = None) -> None:
        """Put the selected parameters into one parent object, in the given order.

        Args:
            selectors: Which parameters; a pattern contributes its names in model order.
            shape: Shape of the parent where the members' shapes do not determine it.

        Raises:
            RecipeError: A parameter is in another group already, or `shape` has another number
                of elements.
        """
        names = self.match(selectors)
        taken = {name for group in self.groups for name in group.parameters}
        twice = tuple(name for name in names if name in taken)
        if twice:
            raise RecipeError("is in another group already", parameters=twice)
        parent = None if shape is None else tuple(shape)
        if parent is not None:
            elements = sum(self.model.parameters[name].num_elements for name in names)
            if min(parent, default=1) < 1 or int(np.prod(parent, dtype=object)) != elements:
                raise RecipeError(
                    f"parent shape {list(parent)} does not hold {elements} elements",
                    parameters=names,
                )
        self.groups.append(Group(names, parent))

    def share(self, parameter: str, target: str) -> None:
        """Bind a parameter to the data of another one; its uses stay its own.

        Raises:
            RecipeError: A name is unknown, the shapes differ, or the sharing would go in a circle.
        """
        for name in (parameter, target):
            if name not in self.model.parameters:
                raise RecipeError(f"no parameter {name!r}")
        shapes = [list(self.model.parameters[name].shape) for name in (parameter, target)]
        if shapes[0] != shapes[1]:
            raise RecipeError(
                f"shape {shapes[0]} cannot be shared with {target} of shape {shapes[1]}",
                parameters=(parameter,),
            )
        end = target
        while end in self.aliases and end != parameter:
            end = self.aliases[end]
        if end == parameter:
            raise RecipeError(f"sharing with {target} goes in a circle", parameters=(parameter,))
        self.aliases[parameter] = target


def _checked_encoding(
    format: str | None,
    layout: str | None,
    method: str | Method | None,
    parameters: Mapping[str, Any] | None,
) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    try:
        if format is not None:
            changes["format"] = get_format(format).name
        if layout is not None:
            changes["layout"] = layout if layout == AUTO_LAYOUT else get_layout(layout).name
    except ArtifactError as error:
        raise RecipeError(str(error), hint=error.hint) from error
    if method is not None:
        if isinstance(method, str):
            find_method(method)
        elif not callable(method):
            raise RecipeError(f"method must be a name or a function, found {method!r}")
        changes["method"] = method
    if parameters is not None:
        try:
            json.dumps(parameters, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise RecipeError(f"method parameters must be JSON values: {error}") from error
        changes["parameters"] = dict(parameters)
    return changes


def _checked_policy(policy: str) -> ActivationPolicy:
    for known in ACTIVATION_POLICIES:
        if policy == known:
            return known
    raise RecipeError(
        f"activation policy {policy!r} is unknown, expected one of {list(ACTIVATION_POLICIES)}"
    )


def _check_rows(name: str, rows: tuple[int, int], shape: tuple[int, ...]) -> None:
    if not shape:
        raise RecipeError("is a scalar and has no rows", parameters=(name,))
    begin, end = rows
    integers = all(isinstance(row, int) and not isinstance(row, bool) for row in rows)
    if not integers or not 0 <= begin < end <= shape[0]:
        raise RecipeError(f"rows {rows} are not a range inside [0, {shape[0]})", parameters=(name,))


def _split(selection: Selection, rows: tuple[int, int] | None) -> list[Selection]:
    """Cut a selection where `rows` begins and ends inside it."""
    if rows is None or selection.rows is None:
        return [selection]
    begin, end = selection.rows
    cuts = [begin, *sorted(cut for cut in rows if begin < cut < end), end]
    return [replace(selection, rows=piece) for piece in pairwise(cuts)]


def _is_inside(piece: tuple[int, int] | None, rows: tuple[int, int]) -> bool:
    return piece is not None and rows[0] <= piece[0] and piece[1] <= rows[1]


def _auxiliary(role: str, value: AuxiliaryValue | float | bytes) -> AuxiliaryValue:
    if isinstance(value, AuxiliaryValue):
        auxiliary = value
    elif role != ACTIVATION_INPUT_DIVISOR:
        raise RecipeError(f"auxiliary {role!r} needs an AuxiliaryValue, found {value!r}")
    elif isinstance(value, bytes):
        if len(value) != 4:
            raise RecipeError(f"{role} needs 4 bytes, found {len(value)}")
        auxiliary = AuxiliaryValue(np.frombuffer(value, "<f4").reshape(()))
    else:
        auxiliary = AuxiliaryValue(np.array(value, np.float32))
    if role == ACTIVATION_INPUT_DIVISOR:
        _check_divisor(auxiliary)
    return auxiliary


def _check_divisor(auxiliary: AuxiliaryValue) -> None:
    if auxiliary.format != "fp32" or auxiliary.values.shape != ():
        raise RecipeError(
            f"{ACTIVATION_INPUT_DIVISOR} must be an fp32 scalar, found {auxiliary.format} "
            f"{list(auxiliary.values.shape)}"
        )
    divisor = float(auxiliary.values)
    if not isfinite(divisor) or divisor <= 0:
        raise RecipeError(f"{ACTIVATION_INPUT_DIVISOR} must be finite and > 0, found {divisor}")
