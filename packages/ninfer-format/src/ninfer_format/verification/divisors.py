"""Activation divisors: single numbers that every use of a tensor multiplies its input by."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import isfinite
from struct import Struct

from ninfer_format.container.artifact import Artifact
from ninfer_format.container.schema import Binding, TensorRecord, Use
from ninfer_format.dtypes import FP32
from ninfer_format.errors import ArtifactError
from ninfer_format.verification.problems import Problem, problem_of

ROLE = "activation_input_divisor"
_NUMBER = Struct("<f")


def divisor_problems(artifact: Artifact, readable: Collection[str]) -> Iterator[Problem]:
    """Divisors that are not one finite number above 0 (container specification, section 3.6).

    Args:
        artifact: The artifact.
        readable: The objects that can be interpreted and whose files are there.
    """
    seen: set[tuple[str, int]] = set()
    for use in artifact.directory.uses:
        binding = use.auxiliaries.get(ROLE)
        if binding is None:
            continue
        place = _place(artifact, binding)
        if place is None:
            message = f"{ROLE} of {use.parameter!r} is not one {FP32.name} number"
            yield Problem("reference", message, binding.object)
        elif place not in seen and place[0] in readable:
            seen.add(place)
            yield from _value_problems(artifact, use, *place)


def _place(artifact: Artifact, binding: Binding) -> tuple[str, int] | None:
    """Object and element of a binding to a single fp32 number; None for any other."""
    if binding.object is not None:
        object_id, begin, end = binding.object, 0, None
    elif len(binding.parts) == 1:
        (part,) = binding.parts
        object_id, begin, end = part.object, part.begin, part.end
    else:
        return None
    record = artifact.record(object_id)
    if not isinstance(record, TensorRecord) or record.format != FP32.name:
        return None
    length = (record.elements if end is None else end) - begin
    return (object_id, begin) if length == 1 else None


def _value_problems(artifact: Artifact, use: Use, object_id: str, index: int) -> Iterator[Problem]:
    offset = artifact.record(object_id).offset + index * _NUMBER.size
    buffer = bytearray(_NUMBER.size)
    try:
        artifact.payload.read_into(offset, buffer)
    except (ArtifactError, OSError) as error:
        yield problem_of(error, object_id=object_id, offset=offset)
        return
    (value,) = _NUMBER.unpack(buffer)
    if not (isfinite(value) and value > 0):
        message = f"{ROLE} of {use.parameter!r} is {value} (expected a finite number above 0)"
        yield Problem("codec", message, object_id, offset)
