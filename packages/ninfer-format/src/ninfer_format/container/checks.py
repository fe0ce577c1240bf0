"""From a parsed JSON value to a `Directory`, with every rule that holds when a file is opened.

Formats and layouts are not looked up here: an object of an unknown encoding can be listed and
copied, and only interpreting it fails (`ninfer_format.codecs.check_encoding`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod
from typing import Any, cast, get_args

from ninfer_format.container.framing import U64_MAX
from ninfer_format.container.json_values import (
    Members,
    check_each,
    check_named,
    identifier,
    is_sibling_name,
    json_array,
    json_object,
    listed,
    open_object,
    u64,
)
from ninfer_format.container.schema import (
    MAX_RANK,
    ActivationPolicy,
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
from ninfer_format.errors import ArtifactError

_POLICIES = frozenset(get_args(ActivationPolicy))

Records = Mapping[str, ObjectRecord]

_DIRECTORY = Members("directory", "components objects bindings uses files", "metadata provenance")
_FILE = Members("file", "path payload_bytes")
_TENSOR = Members(
    "tensor", "id kind shape format layout offset bytes", "divisors bitrate_half_bits"
)
_RESOURCE = Members("resource", "id kind encoding offset bytes")
_COMPONENT = Members("component", "config", "target resources proposal")
_FULL_PROPOSAL = Members("proposal", "domain")
_INDEXED_PROPOSAL = Members("proposal", "domain rows")
_PART = Members("part", "object range")
_USE = Members("use", "parameter input", "activation_policy auxiliaries")


def parse_directory(root: Any, entry_name: str) -> Directory:
    """Check a parsed directory and turn it into records.

    Args:
        root: The parsed JSON value.
        entry_name: File name of the entry; no part may have the same name.

    Returns:
        The directory.

    Raises:
        ArtifactError: `schema`, `files`, `objects`, `reference` or `json`, by the rule broken.
    """
    members = _DIRECTORY.of(root)
    files = _files(members["files"], entry_name)
    objects = _objects(members["objects"], sum(segment.payload_bytes for segment in files))
    records = {record.id: record for record in objects}
    components = _components(members["components"], records)
    bindings = check_named(members["bindings"], "bindings", _binding, records)
    uses = _uses(members["uses"], bindings, records)
    metadata = open_object(members.get("metadata", {}), "metadata")
    if "name" in metadata:
        identifier(metadata["name"], "metadata.name")
    provenance = open_object(members.get("provenance", {}), "provenance")
    return Directory(components, objects, bindings, uses, files, metadata, provenance)


# --- files -----------------------------------------------------------------------------------


def _files(value: Any, entry_name: str) -> tuple[FileSegment, ...]:
    entries = json_array(value, "files")
    if not entries:
        raise ArtifactError("files", "files is empty")
    files = check_each(entries, "files", _file)
    if files[0].path is not None:
        raise ArtifactError(
            "files", "files[0]: the entry has a path", expected="null", found=repr(files[0].path)
        )
    taken = {entry_name}
    for index, file in enumerate(files[1:], start=1):
        _check_part_name(file.path, index, taken)
    total = sum(file.payload_bytes for file in files)
    if total > U64_MAX:
        raise ArtifactError("files", "payload is too long", expected="at most 2^64-1", found=total)
    return files


def _file(value: Any) -> FileSegment:
    members = _FILE.of(value)
    payload_bytes = members["payload_bytes"]
    if type(payload_bytes) is int and payload_bytes < 1:
        raise ArtifactError(
            "files", "payload_bytes is too small", expected="at least 1", found=payload_bytes
        )
    return FileSegment(members["path"], u64(payload_bytes, "payload_bytes"))


def _check_part_name(path: Any, index: int, taken: set[str]) -> None:
    if not is_sibling_name(path):
        raise ArtifactError(
            "files",
            f"files[{index}]: path is not the name of a file beside the entry",
            expected="a plain file name",
            found=repr(path),
        )
    if path in taken:
        raise ArtifactError("files", f"files[{index}]: {path!r} is another file of the set")
    taken.add(path)


# --- objects ---------------------------------------------------------------------------------


def _objects(value: Any, payload_bytes: int) -> tuple[ObjectRecord, ...]:
    entries = json_array(value, "objects")
    if not entries:
        raise ArtifactError("schema", "objects is empty")
    records = check_each(entries, "objects", _record)
    seen: set[str] = set()
    end = 0
    for record in records:
        if record.id in seen:
            raise ArtifactError("objects", "id appears twice", object_id=record.id)
        seen.add(record.id)
        if record.offset < end:
            raise ArtifactError(
                "objects",
                "overlaps the object before it or is out of order",
                object_id=record.id,
                expected=f"offset of at least {end}",
                found=record.offset,
            )
        end = record.end
        if end > payload_bytes:
            raise ArtifactError(
                "objects",
                "ends after the payload",
                object_id=record.id,
                expected=f"end of at most {payload_bytes}",
                found=end,
            )
    return records


def _record(value: Any) -> ObjectRecord:
    kind = json_object(value, "object").get("kind")
    if kind == "tensor":
        return _tensor(_TENSOR.of(value))
    if kind == "resource":
        return _resource(_RESOURCE.of(value))
    if "kind" not in value:
        raise ArtifactError("schema", "object lacks member 'kind'")
    raise ArtifactError(
        "schema", "kind is unknown", expected="'tensor' or 'resource'", found=repr(kind)
    )


def _tensor(members: Mapping[str, Any]) -> TensorRecord:
    bitrate = members.get("bitrate_half_bits")
    if "bitrate_half_bits" in members:
        bitrate = u64(bitrate, "bitrate_half_bits", minimum=1)
    return TensorRecord(
        id=identifier(members["id"], "id"),
        shape=_shape(members["shape"]),
        format=identifier(members["format"], "format"),
        layout=identifier(members["layout"], "layout"),
        **_extent(members),
        divisors=u64(members.get("divisors", 1), "divisors", minimum=1),
        bitrate_half_bits=bitrate,
    )


def _resource(members: Mapping[str, Any]) -> ResourceRecord:
    return ResourceRecord(
        id=identifier(members["id"], "id"),
        encoding=identifier(members["encoding"], "encoding"),
        **_extent(members),
    )


def _extent(members: Mapping[str, Any]) -> dict[str, int]:
    offset = u64(members["offset"], "offset")
    num_bytes = u64(members["bytes"], "bytes", minimum=1)
    if offset + num_bytes > U64_MAX:
        raise ArtifactError("schema", "object ends beyond 2^64-1")
    return {"offset": offset, "num_bytes": num_bytes}


def _shape(value: Any) -> tuple[int, ...]:
    dimensions = json_array(value, "shape")
    if len(dimensions) > MAX_RANK:
        raise ArtifactError(
            "schema", "shape has too many axes", expected=f"0 to {MAX_RANK}", found=len(dimensions)
        )
    shape = tuple(u64(dimension, "shape", minimum=1) for dimension in dimensions)
    if prod(shape) > U64_MAX:
        raise ArtifactError("schema", "shape has more than 2^64-1 elements")
    return shape


# --- components ------------------------------------------------------------------------------


def _components(value: Any, records: Records) -> dict[str, Component]:
    if "text" not in json_object(value, "components"):
        raise ArtifactError("schema", "components lacks member 'text'")
    components = check_named(value, "components", _component, records)
    for name, component in components.items():
        if component.target is not None and component.target not in components:
            raise ArtifactError(
                "reference",
                f"components[{name!r}]: target names no component: {component.target!r}",
            )
        if component.proposal is not None and name != "text":
            raise ArtifactError("schema", f"components[{name!r}]: only 'text' may have a proposal")
    return components


def _component(value: Any, records: Records) -> Component:
    members = _COMPONENT.of(value)
    config = open_object(members["config"], "config")
    target = members.get("target")
    if "target" in members:
        target = identifier(target, "target")
    resources = check_named(members.get("resources", {}), "resources", _resource_id, records)
    proposal = _proposal(members["proposal"]) if "proposal" in members else None
    return Component(config, target, resources, proposal)


def _resource_id(value: Any, records: Records) -> str:
    if not isinstance(records.get(identifier(value, "object")), ResourceRecord):
        raise ArtifactError("reference", f"names no resource: {value!r}")
    return cast("str", value)


def _proposal(value: Any) -> Proposal:
    domain = json_object(value, "proposal").get("domain")
    if domain == "full":
        _FULL_PROPOSAL.of(value)
        return Proposal("full")
    if domain == "indexed":
        rows = _INDEXED_PROPOSAL.of(value)["rows"]
        return Proposal("indexed", u64(rows, "proposal.rows", minimum=1))
    raise ArtifactError(
        "schema",
        "proposal.domain is unknown",
        expected="'full' or 'indexed'",
        found=repr(domain),
    )


# --- bindings and uses -----------------------------------------------------------------------


def _binding(value: Any, records: Records) -> Binding:
    members = json_object(value, "binding")
    if len(members) == 1:
        if "object" in members:
            return Binding(object=_bound_tensor(members["object"], records).id)
        if "parts" in members:
            return Binding(parts=_parts(members["parts"], records))
    raise ArtifactError(
        "schema",
        "not a binding",
        expected="exactly one of the members 'object' and 'parts'",
        found=listed(members) or "none",
    )


def _parts(value: Any, records: Records) -> tuple[Part, ...]:
    entries = json_array(value, "parts")
    if not entries:
        raise ArtifactError("schema", "parts is empty")
    parts = check_each(entries, "parts", _part, records)
    if sum(part.end - part.begin for part in parts) > U64_MAX:
        raise ArtifactError("schema", "parts have more than 2^64-1 elements together")
    return parts


def _part(value: Any, records: Records) -> Part:
    members = _PART.of(value)
    tensor = _bound_tensor(members["object"], records)
    bounds = json_array(members["range"], "range")
    if len(bounds) != 2:
        raise ArtifactError("schema", "range has the wrong length", expected=2, found=len(bounds))
    begin, end = u64(bounds[0], "range"), u64(bounds[1], "range")
    if not begin < end <= tensor.elements:
        raise ArtifactError(
            "reference",
            f"range is empty or outside object {tensor.id!r}",
            expected=f"0 <= begin < end <= {tensor.elements}",
            found=f"[{begin}, {end})",
        )
    return Part(tensor.id, begin, end)


def _bound_tensor(value: Any, records: Records) -> TensorRecord:
    record = records.get(value) if isinstance(value, str) else None
    if isinstance(record, TensorRecord):
        return record
    identifier(value, "object")
    what = "no object" if record is None else "a resource"
    raise ArtifactError("reference", f"object names {what}: {value!r}")


def _uses(value: Any, bindings: Mapping[str, Binding], records: Records) -> tuple[Use, ...]:
    uses = check_each(json_array(value, "uses"), "uses", _use, bindings, records)
    places = Counter((use.parameter, use.input) for use in uses)
    if len(places) != len(uses):
        (parameter, place), count = places.most_common(1)[0]
        raise ArtifactError("reference", f"uses has {parameter!r} at input {place!r} {count} times")
    return uses


def _use(value: Any, bindings: Mapping[str, Binding], records: Records) -> Use:
    members = _USE.of(value)
    parameter = identifier(members["parameter"], "parameter")
    if parameter not in bindings:
        raise ArtifactError("reference", f"parameter {parameter!r} is not bound")
    policy = members.get("activation_policy")
    if "activation_policy" in members and not (isinstance(policy, str) and policy in _POLICIES):
        raise ArtifactError(
            "schema",
            "activation_policy is unknown",
            expected=" or ".join(get_args(ActivationPolicy)),
            found=repr(policy),
        )
    auxiliaries = members.get("auxiliaries", {})
    if auxiliaries != {}:
        auxiliaries = check_named(auxiliaries, "auxiliaries", _binding, records)
    return Use(parameter, identifier(members["input"], "input"), policy, auxiliaries)
