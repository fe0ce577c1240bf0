"""What can be checked about an artifact without reading what its objects hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from ninfer_format.codecs import check_encoding
from ninfer_format.container.artifact import Artifact
from ninfer_format.container.schema import Binding, Directory, ObjectRecord, TensorRecord
from ninfer_format.errors import ArtifactError
from ninfer_format.layouts import LAYOUTS, align_up
from ninfer_format.verification.problems import Problem, problem_of


@dataclass(frozen=True, slots=True)
class Structure:
    """What `check_structure` found.

    Attributes:
        problems: Broken rules.
        notes: What is legal but worth knowing, in words.
        readable: The objects that can be interpreted and whose files are there, in payload order.
    """

    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    readable: tuple[ObjectRecord, ...]


def check_structure(artifact: Artifact) -> Structure:
    """Check every object's encoding, every continuation file and every binding.

    Opening the artifact has checked the directory itself already.
    """
    directory = artifact.directory
    misfits = {problem.object: problem for problem in _encoding_problems(directory)}
    parts = dict(_part_problems(artifact))
    begins = _segment_begins(directory)
    missing = [(begins[index], begins[index + 1]) for index in parts]
    readable = tuple(
        record
        for record in directory.objects
        if record.id not in misfits
        and not any(record.offset < end and record.end > begin for begin, end in missing)
    )
    problems = (*misfits.values(), *parts.values(), *_mixed_bindings(directory))
    return Structure(problems, tuple(_notes(directory)), readable)


def _encoding_problems(directory: Directory) -> Iterator[Problem]:
    for record in directory.objects:
        try:
            check_encoding(record)
        except ArtifactError as error:
            yield problem_of(error, object_id=record.id, offset=record.offset)


def _part_problems(artifact: Artifact) -> Iterator[tuple[int, Problem]]:
    """Continuation files that are absent or not the right ones, by their index."""
    for index, begin in enumerate(_segment_begins(artifact.directory)[1:-1], start=1):
        name = artifact.directory.files[index].path
        try:
            artifact.payload.require(begin, 1)
        except (ArtifactError, OSError) as error:
            yield index, problem_of(error, offset=begin, file=name)


def _segment_begins(directory: Directory) -> list[int]:
    """Where each file's share of the payload begins, and the end of the last."""
    return [0, *accumulate(file.payload_bytes for file in directory.files)]


def _mixed_bindings(directory: Directory) -> Iterator[Problem]:
    formats = {record.id: record.format for record in directory.tensors}
    for name, binding in directory.bindings.items():
        kinds = {formats[part.object] == "int32" for part in binding.parts}
        if len(kinds) > 1:
            message = f"parameter {name!r} is bound to integers and reals together"
            yield Problem("reference", message)


# --- notes -----------------------------------------------------------------------------------


def _notes(directory: Directory) -> Iterator[str]:
    gaps = list(_gaps(directory))
    if gaps:
        total = sum(end - begin for begin, end in gaps)
        yield (
            f"{total} bytes of the payload belong to no object "
            f"({len(gaps)} gaps, the first at {gaps[0][0]})"
        )
    used = _used(directory)
    unbound = [record.id for record in directory.objects if record.id not in used]
    if unbound:
        yield (
            f"{len(unbound)} objects are used by no parameter and no component, "
            f"the first is {unbound[0]!r}"
        )


def _gaps(directory: Directory) -> Iterator[tuple[int, int]]:
    """Payload ranges without an object that are more than the alignment of the next one."""
    end = 0
    for record in directory.objects:
        if record.offset > align_up(end, _alignment(record)):
            yield end, record.offset
        end = record.end
    if end < directory.payload_bytes:
        yield end, directory.payload_bytes


def _alignment(record: ObjectRecord) -> int:
    if isinstance(record, TensorRecord) and record.layout in LAYOUTS:
        return LAYOUTS[record.layout].alignment
    return 1


def _used(directory: Directory) -> set[str]:
    bindings: list[Binding] = [*directory.bindings.values()]
    for use in directory.uses:
        bindings.extend(use.auxiliaries.values())
    used = {part.object for binding in bindings for part in binding.parts}
    used |= {binding.object for binding in bindings if binding.object is not None}
    for component in directory.components.values():
        used |= set(component.resources.values())
    return used
