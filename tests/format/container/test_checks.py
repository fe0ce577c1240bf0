"""Rules of the directory that the malformed files do not cover, one change at a time."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ninfer_format import ArtifactError, Proposal
from ninfer_format.container.checks import parse_directory

U64_MAX = 2**64 - 1

VALID: dict[str, Any] = {
    "components": {
        "text": {
            "config": {},
            "resources": {"role": "r"},
            "proposal": {"domain": "indexed", "rows": 5},
        },
        "mtp": {"config": {}, "target": "text"},
    },
    "objects": [
        {"id": "r", "kind": "resource", "encoding": "raw_bytes_v1", "offset": 0, "bytes": 3},
        {
            "id": "w",
            "kind": "tensor",
            "shape": [2, 3],
            "format": "bf16",
            "layout": "contiguous_le_v1",
            "offset": 256,
            "bytes": 12,
        },
    ],
    "bindings": {
        "text/w": {"object": "w"},
        "text/v": {"parts": [{"object": "w", "range": [0, 6]}]},
    },
    "uses": [
        {
            "parameter": "text/w",
            "input": "x",
            "activation_policy": "AllowA8",
            "auxiliaries": {"d": {"object": "w"}},
        }
    ],
    "files": [{"path": None, "payload_bytes": 268}],
}

DELETE = object()


def changed(path: str, value: Any) -> dict[str, Any]:
    """A copy of VALID with the value at a bar-separated place replaced or removed."""
    root = copy.deepcopy(VALID)
    *parents, last = path.split("|")
    target: Any = root
    for name in parents:
        target = target[int(name) if isinstance(target, list) else name]
    key: Any = int(last) if isinstance(target, list) else last
    if value is DELETE:
        del target[key]
    else:
        target[key] = value
    return root


def test_the_valid_directory_is_accepted() -> None:
    directory = parse_directory(VALID, "x.ninfer")
    assert directory.components["text"].proposal == Proposal("indexed", 5)
    assert directory.bindings["text/v"].parts[0].end == 6
    assert directory.uses[0].auxiliaries["d"].object == "w"
    assert directory.to_json() == VALID | {"metadata": {}, "provenance": {}}


@pytest.mark.parametrize(
    ("path", "value", "category"),
    [
        ("components", [], "schema"),
        ("components|text", None, "schema"),
        ("components|text|config", None, "schema"),
        ("components|mtp|target", None, "schema"),
        ("components|mtp|target", "", "schema"),
        ("components|mtp|resources", [], "schema"),
        ("components|mtp|resources", {"": "r"}, "schema"),
        ("components|mtp|resources", {"x": 1}, "schema"),
        ("components|mtp|proposal", {"domain": "full"}, "schema"),
        ("components|text|proposal", None, "schema"),
        ("components|text|proposal", {"domain": "full", "rows": 5}, "schema"),
        ("components|text|proposal", {"domain": "indexed", "rows": 0}, "schema"),
        ("components|text|proposal", {"domain": "indexed", "rows": 5, "x": 1}, "schema"),
        ("components|text|proposal", {"domain": ["full"]}, "schema"),
        ("components|", {"config": {}}, "schema"),
        ("objects", {}, "schema"),
        ("objects|0", "r", "schema"),
        ("objects|0|kind", DELETE, "schema"),
        ("objects|0|kind", ["tensor"], "schema"),
        ("objects|0|encoding", "", "schema"),
        ("objects|0|bytes", 3.0, "schema"),
        ("objects|1|shape", None, "schema"),
        ("objects|1|shape", [True, 3], "schema"),
        ("objects|1|shape", [-2, 3], "schema"),
        ("objects|1|shape", [2**32, 2**32], "schema"),
        ("objects|1|bitrate_half_bits", None, "schema"),
        ("objects|1|bitrate_half_bits", 0, "schema"),
        ("objects|1|divisors", None, "schema"),
        ("objects|1|divisors", U64_MAX + 1, "schema"),
        ("objects|1|bytes", U64_MAX, "schema"),
        ("objects|1|offset", 2, "objects"),
        ("objects|1|bytes", 13, "objects"),
        ("objects|1|id", "r", "objects"),
        ("bindings", [], "schema"),
        ("bindings|text/w", {}, "schema"),
        ("bindings|text/w", {"object": 1}, "schema"),
        ("bindings|text/w", {"object": "w", "shape": []}, "schema"),
        ("bindings|text/w", {"objects": "w"}, "schema"),
        ("bindings|text/v|parts", {}, "schema"),
        ("bindings|text/v|parts|0|range", [0], "schema"),
        ("bindings|text/v|parts|0|range", [0, True], "schema"),
        ("bindings|text/v|parts|0|range", [-1, 3], "schema"),
        ("bindings|text/v|parts|0|range", "0:3", "schema"),
        ("bindings|text/v|parts|0|range", [4, 3], "reference"),
        ("bindings|text/v|parts|0|range", [6, 7], "reference"),
        ("bindings|text/v|parts|0|object", "r", "reference"),
        ("bindings|a\0b", {"object": "w"}, "schema"),
        ("uses", {}, "schema"),
        ("uses|0", [], "schema"),
        ("uses|0|parameter", "text/none", "reference"),
        ("uses|0|input", "", "schema"),
        ("uses|0|activation_policy", None, "schema"),
        ("uses|0|activation_policy", ["A16Only"], "schema"),
        ("uses|0|activation_policy", "a16only", "schema"),
        ("uses|0|auxiliaries", None, "schema"),
        ("uses|0|auxiliaries", {"": {"object": "w"}}, "schema"),
        ("uses|0|auxiliaries|d", {"object": "r"}, "reference"),
        ("files", {}, "schema"),
        ("files|0|payload_bytes", "268", "schema"),
        ("files|0|payload_bytes", True, "schema"),
        ("files|0|payload_bytes", U64_MAX + 1, "schema"),
        ("files|0|payload_bytes", -1, "files"),
        ("files|0|size", 1, "schema"),
        ("metadata", None, "schema"),
        ("metadata", {"name": 3}, "schema"),
        ("metadata", {"x": "\ud800"}, "json"),
        ("provenance", [], "schema"),
        ("version", 3, "schema"),
    ],
)
def test_one_change_breaks_it(path: str, value: Any, category: str) -> None:
    with pytest.raises(ArtifactError) as raised:
        parse_directory(changed(path, value), "x.ninfer")
    assert raised.value.category == category


@pytest.mark.parametrize(
    "name", ["a/b", "/a", "a\\b", ".", "..", "", "x.ninfer", "a\0b", "\ud800", 7, None]
)
def test_part_names_must_be_plain_siblings(name: Any) -> None:
    root = changed("files", [*VALID["files"], {"path": name, "payload_bytes": 1}])
    with pytest.raises(ArtifactError) as raised:
        parse_directory(root, "x.ninfer")
    assert raised.value.category == "files"


def test_unusual_but_legal_directories_are_accepted() -> None:
    root = copy.deepcopy(VALID)
    root["components"]["somethingnew"] = {"config": {}, "target": "somethingnew"}
    root["objects"][1]["shape"] = []
    root["bindings"] = {"é/ü": {"parts": [{"object": "w", "range": [0, 1]}] * 3}}
    root["uses"] = []
    root["files"].append({"path": "…part two.bin", "payload_bytes": U64_MAX - 268})
    directory = parse_directory(root, "x.ninfer")
    assert directory.payload_bytes == U64_MAX
    assert len(directory.bindings["é/ü"].parts) == 3
    assert directory.tensors[0].elements == 1


def test_messages_say_where() -> None:
    with pytest.raises(ArtifactError, match=r"bindings\['text/v'\]: parts\[0\]: range is empty"):
        parse_directory(changed("bindings|text/v|parts|0|range", [3, 3]), "x.ninfer")
    with pytest.raises(ArtifactError, match=r"objects\[1\]: tensor lacks member 'layout'"):
        parse_directory(changed("objects|1|layout", DELETE), "x.ninfer")
