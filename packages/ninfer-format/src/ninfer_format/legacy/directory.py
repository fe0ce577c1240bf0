"""The JSON directory of versions 1 and 2 (container specification, section 10).

Each object is translated to a version 3 record, so that the version 3 reader's own checks judge
shapes, offsets, order and encoded sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_format.codecs import check_encoding
from ninfer_format.container.checks import parse_directory
from ninfer_format.container.json_values import (
    Members,
    check_each,
    identifier,
    json_array,
    json_object,
)
from ninfer_format.container.schema import ObjectRecord
from ninfer_format.errors import ArtifactError
from ninfer_format.legacy.names import ENCODINGS, FORMATS, LAYOUTS, LegacyVersion

_V1_ROOT = Members("directory", "model_id objects")
_V2_ROOT = Members("directory", "identity objects")
_IDENTITY = Members("identity", "model_id weights_id")
_TENSOR = Members("tensor", "name kind shape format layout offset bytes")
_RESOURCE = Members("resource", "name kind encoding offset bytes")


@dataclass(frozen=True, slots=True)
class LegacyDirectory:
    """Everything that the JSON of a version 1 or 2 file says.

    Attributes:
        version: 1 or 2.
        model_id: The model, for example ``qwen3.6-27b``.
        weights_id: How it was quantized, for example ``groupwise-int``; version 1 does not say.
        objects: The objects in payload order, with version 3 names of formats and layouts. The
            id of a record is the object's name.
    """

    version: LegacyVersion
    model_id: str
    weights_id: str | None
    objects: tuple[ObjectRecord, ...]


def parse_legacy_directory(
    root: Any, version: LegacyVersion, payload_bytes: int
) -> LegacyDirectory:
    """Check a parsed directory and turn it into records.

    Args:
        root: The parsed JSON value.
        version: The version that the magic names.
        payload_bytes: Bytes of the file behind the start of the payload, at least 1.

    Raises:
        ArtifactError: `schema`, `objects`, `encoding` or `json`, by the rule broken.
    """
    if version == 1:
        members = _V1_ROOT.of(root)
        model_id, weights_id = identifier(members["model_id"], "model_id"), None
    else:
        members = _V2_ROOT.of(root)
        identity = _IDENTITY.of(members["identity"])
        model_id = identifier(identity["model_id"], "identity.model_id")
        weights_id = identifier(identity["weights_id"], "identity.weights_id")
    translated = check_each(
        json_array(members["objects"], "objects"), "objects", _translate, version
    )
    objects = _records(translated, payload_bytes)
    for record in objects:
        check_encoding(record)
    return LegacyDirectory(version, model_id, weights_id, objects)


def _translate(value: Any, version: LegacyVersion) -> dict[str, Any]:
    """The version 3 directory's JSON of one object; its values are not judged yet."""
    kind = json_object(value, "object").get("kind")
    if kind == "tensor":
        members = _TENSOR.of(value)
        names = {
            "format": _v3_name(members, "format", FORMATS[version]),
            "layout": _v3_name(members, "layout", LAYOUTS[version]),
        }
    else:
        members = _RESOURCE.of(value)
        names = {"encoding": _v3_name(members, "encoding", ENCODINGS)}
    kept = {key: member for key, member in members.items() if key != "name"}
    return {"id": identifier(members["name"], "name"), **kept, **names}


def _v3_name(members: Mapping[str, Any], key: str, names: Mapping[str, str]) -> str:
    name = identifier(members[key], key)
    if name not in names:
        raise ArtifactError(
            "encoding", f"unknown {key}", expected=f"one of {', '.join(names)}", found=name
        )
    return names[name]


def _records(
    translated: tuple[dict[str, Any], ...], payload_bytes: int
) -> tuple[ObjectRecord, ...]:
    root = {
        "components": {"text": {"config": {}}},
        "objects": list(translated),
        "bindings": {},
        "uses": [],
        "files": [{"path": None, "payload_bytes": payload_bytes}],
    }
    return parse_directory(root, entry_name="").objects
