"""Keeping an artifact as it is, as the beginning of a recipe that changes some of it."""

from __future__ import annotations

import json

from ninfer_format import Artifact, Use, get_format
from ninfer_format.dtypes import DirectFormat
from ninfer_quant.errors import ConversionError
from ninfer_quant.methods.calibrated_input import CALIBRATION
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.selection import IMPORT_ENCODED, AuxiliaryValue, UseSettings

_CANONICAL = {"bf16", "fp32", "int32"}


def keep_as_stored(recipe: Recipe, artifact: Artifact) -> None:
    """Let every parameter keep its words and its uses; those with the same data stay shared."""
    records = {record.id: record for record in artifact.directory.tensors}
    owners: dict[tuple[str, int, int], str] = {}
    for name in recipe.model.parameters:
        (part,) = artifact.parts(name)
        record = records[part.object]
        method = "cast_direct" if record.format in _CANONICAL else IMPORT_ENCODED
        recipe.assign(name, format=record.format, layout=record.layout, method=method)
        owner = owners.setdefault((part.object, part.begin, part.end), name)
        if owner != name:
            recipe.share(name, owner)
    for use in artifact.directory.uses:
        policy = use.activation_policy or "A16Only"
        settings = UseSettings(policy, _auxiliaries(artifact, use))
        recipe.uses[use.parameter, use.input] = settings


def _auxiliaries(artifact: Artifact, use: Use) -> dict[str, AuxiliaryValue]:
    found = {}
    for role, binding in use.auxiliaries.items():
        record = None if binding.object is None else artifact.record(binding.object)
        format_ = getattr(record, "format", "")
        if record is None or not isinstance(get_format(format_), DirectFormat):
            raise ConversionError(
                f"auxiliary {role} of {use.parameter} is not one object of a direct format",
                path=artifact.path,
            )
        found[role] = AuxiliaryValue(artifact.decode_object(record.id), format_)
    return found


def group_as_stored(recipe: Recipe, artifact: Artifact) -> None:
    """Keep together what lies in one object, as far as it is still encoded alike.

    Raises:
        ConversionError: Parameters overlap.
    """
    members: dict[str, list[str]] = {}
    ends: dict[str, int] = {}
    for name in recipe.model.parameters:
        if name in recipe.aliases:
            continue
        (part,) = artifact.parts(name)
        if part.begin < ends.get(part.object, 0):
            raise ConversionError(
                f"parameter {name} overlaps another one in {part.object}", path=artifact.path
            )
        ends[part.object] = part.end
        members.setdefault(part.object, []).append(name)
    for names in members.values():
        alike: dict[object, list[str]] = {}
        for name in names:
            alike.setdefault(_kind(recipe, name), []).append(name)
        for together in alike.values():
            if len(together) > 1:
                recipe.group(together)


def _kind(recipe: Recipe, name: str) -> object:
    """What parameters of one object have in common."""
    encoding = recipe.selections[name][0].encoding
    known = json.dumps(encoding.parameters, sort_keys=True)
    # A calibrated method looks at one input.
    inputs = recipe.model.parameters[name].inputs if CALIBRATION in encoding.parameters else ()
    return encoding.format, encoding.layout, encoding.method, known, inputs
