"""Random directories are written as JSON and read back as they were, whatever the cut."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_format import (
    ArtifactError,
    Binding,
    Component,
    Directory,
    FileSegment,
    ObjectRecord,
    Part,
    Proposal,
    ResourceRecord,
    TensorRecord,
    Use,
)
from ninfer_format.container.checks import parse_directory
from ninfer_format.container.json_text import parse_json
from ninfer_format.container.schema import ActivationPolicy
from ninfer_format.container.segments import plan_files

IDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
POLICIES: st.SearchStrategy[ActivationPolicy | None] = st.sampled_from(
    [None, "A16Only", "AllowA8", "AllowA4"]
)
REPLACEMENTS: list[Any] = ["delete", None, 1.0, True, [], {}, "x", -1, 2**64]
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
OPEN_OBJECTS = st.dictionaries(
    TEXT,
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=5,
    ),
    max_size=3,
)


@st.composite
def directories(draw: st.DrawFn) -> Directory:
    """Sound directories; of names of formats and layouts nothing is asked."""
    names = draw(st.lists(IDS, min_size=1, max_size=6, unique=True))
    objects = []
    end = 0
    for name in names:
        record = draw(objects_at(name, end + draw(st.integers(0, 600))))
        objects.append(record)
        end = record.end
    tensors = [record for record in objects if isinstance(record, TensorRecord)]
    bindings = draw(st.dictionaries(IDS, bindings_of(tensors), max_size=4)) if tensors else {}
    return Directory(
        components=draw(components_of(objects)),
        objects=tuple(objects),
        bindings=bindings,
        uses=draw(uses_of(bindings, tensors)) if bindings else (),
        files=(FileSegment(None, end + draw(st.integers(0, 99_999))),),
        metadata=draw(OPEN_OBJECTS.filter(lambda value: "name" not in value))
        | ({"name": draw(IDS)} if draw(st.booleans()) else {}),
        provenance=draw(OPEN_OBJECTS),
    )


@st.composite
def objects_at(draw: st.DrawFn, name: str, offset: int) -> ObjectRecord:
    num_bytes = draw(st.integers(1, 100_000))
    if draw(st.booleans()):
        return ResourceRecord(name, draw(IDS), offset, num_bytes)
    return TensorRecord(
        name,
        tuple(draw(st.lists(st.integers(1, 9), max_size=16))),
        draw(IDS),
        draw(IDS),
        offset,
        num_bytes,
        draw(st.sampled_from([1, 2, 7])),
        draw(st.none() | st.integers(1, 2**64 - 1)),
    )


@st.composite
def bindings_of(draw: st.DrawFn, tensors: list[TensorRecord]) -> Binding:
    if draw(st.booleans()):
        return Binding(object=draw(st.sampled_from(tensors)).id)
    parts = []
    for record in draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=4)):
        begin = draw(st.integers(0, record.elements - 1))
        parts.append(Part(record.id, begin, draw(st.integers(begin + 1, record.elements))))
    return Binding(parts=tuple(parts))


@st.composite
def uses_of(
    draw: st.DrawFn, bindings: dict[str, Binding], tensors: list[TensorRecord]
) -> tuple[Use, ...]:
    places = draw(st.sets(st.tuples(st.sampled_from(sorted(bindings)), IDS), max_size=5))
    auxiliaries = st.dictionaries(IDS, bindings_of(tensors), max_size=2)
    return tuple(
        Use(parameter, place, draw(POLICIES), draw(auxiliaries))
        for parameter, place in sorted(places)
    )


@st.composite
def components_of(draw: st.DrawFn, objects: list[ObjectRecord]) -> dict[str, Component]:
    resources = [record.id for record in objects if isinstance(record, ResourceRecord)]
    names = [
        "text",
        *draw(st.lists(IDS.filter(lambda name: name != "text"), max_size=3, unique=True)),
    ]
    proposals = st.none() | st.just(Proposal("full"))
    proposals |= st.integers(1, 2**64 - 1).map(lambda rows: Proposal("indexed", rows))
    roles = (
        st.dictionaries(IDS, st.sampled_from(resources), max_size=3) if resources else st.just({})
    )
    return {
        name: Component(
            draw(OPEN_OBJECTS),
            draw(st.none() | st.sampled_from(names)),
            draw(roles),
            draw(proposals) if name == "text" else None,
        )
        for name in draw(st.permutations(names))
    }


@settings(max_examples=200)
@given(directory=directories(), room=st.sampled_from([16_384, 40_000, 10**9]), name=IDS)
def test_directories_are_read_back(directory: Directory, room: int, name: str) -> None:
    one_file = plan_files(directory, "m.ninfer", 10**12)
    plan = plan_files(directory, "m.ninfer", one_file.entry_payload_start + room)
    found = parse_directory(parse_json(plan.json_bytes), "m.ninfer")
    assert found == plan.directory
    assert sum(plan.segments) == directory.payload_bytes
    for member in ("components", "objects", "bindings", "uses", "metadata", "provenance"):
        assert getattr(found, member) == getattr(directory, member)
    assert list(found.components) == list(directory.components), "order is kept"


@given(directory=directories(), choices=st.data())
def test_any_member_that_is_missing_or_of_another_type_is_an_error_of_its_kind(
    directory: Directory, choices: st.DataObject
) -> None:
    value: Any = directory.to_json()
    target, key = draw_place(choices, value)
    replacement: Any = choices.draw(st.sampled_from(REPLACEMENTS))
    if replacement == "delete":
        del target[key]
    else:
        target[key] = replacement
    category = None
    try:
        parse_directory(value, "m.ninfer")
    except ArtifactError as error:
        category = error.category
    assert category in {None, "schema", "files", "objects", "reference", "json"}


def draw_place(choices: st.DataObject, value: Any) -> tuple[Any, Any]:
    """Some member or item, at any depth."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = choices.draw(st.sampled_from(keys))
        inner = value[key]
        if not isinstance(inner, (dict, list)) or not inner or choices.draw(st.booleans()):
            return value, key
        value = inner
