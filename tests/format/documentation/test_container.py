"""container.md: magic bytes, members, categories and limits are those of the code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from ninfer_format import ArtifactError, TensorRecord, open_artifact
from ninfer_format.container.checks import parse_directory
from ninfer_format.container.framing import (
    ENTRY_MAGIC,
    FILE_ALIGNMENT,
    HEADER_BYTES,
    MAX_JSON_BYTES,
    PART_MAGIC,
    SPARE_BYTES,
    U64_MAX,
)
from ninfer_format.container.json_text import MAX_DEPTH, MAX_INTEGER_DIGITS
from ninfer_format.container.schema import MAX_RANK, ActivationPolicy
from ninfer_format.container.segments import DEFAULT_MAX_FILE_BYTES
from ninfer_format.errors import ArtifactCategory


def test_categories_policies_and_limits_are_complete(pages: Any) -> None:
    errors = pages.table("container", "Errors", "category")
    assert [row["category"].names for row in errors] == [
        [category] for category in get_args(ArtifactCategory)
    ]
    policies = pages.table("container", "Uses", "policy")
    assert [row["policy"].name for row in policies] == list(get_args(ActivationPolicy))
    limits = [int(row["value"]) for row in pages.table("container", "Limits", "limit", "value")]
    assert limits == [
        U64_MAX,
        MAX_RANK,
        MAX_JSON_BYTES,
        SPARE_BYTES,
        MAX_DEPTH,
        MAX_INTEGER_DIGITS,
        DEFAULT_MAX_FILE_BYTES,
    ]


@pytest.mark.parametrize(
    ("page", "heading", "payload"),
    [
        ("container", "Entry", f"align({HEADER_BYTES} + json_bytes, {FILE_ALIGNMENT})"),
        ("container", "Continuation", str(FILE_ALIGNMENT)),
        ("legacy", "The file", f"align(16 + json_bytes, {FILE_ALIGNMENT})"),
    ],
)
def test_offsets_of_a_header_add_up(pages: Any, page: str, heading: str, payload: str) -> None:
    rows = pages.table(page, heading, "offset", "bytes", "field")
    end = "0"
    for row in rows:
        # The gap of an entry is what lies before the payload.
        assert row["offset"] == (payload if row["field"] == "payload" else end)
        both = end.isdigit() and row["bytes"].isdigit()
        end = str(int(end) + int(row["bytes"])) if both else f"{end} + {row['bytes']}"
    assert rows[-1]["field"] == "payload"


def test_magic_bytes_and_the_smallest_artifact_are_right(pages: Any, conformance: Path) -> None:
    for heading, magic in (("Entry", ENTRY_MAGIC), ("Continuation", PART_MAGIC)):
        (row,) = (
            row for row in pages.table("container", heading, "field") if row["field"] == "magic"
        )
        assert bytes.fromhex(row["content"].names[0]) == magic
    (block,) = pages.code("container", "json")
    directory = parse_directory(json.loads(block), "m.ninfer")
    with open_artifact(conformance / "artifacts/minimal/minimal.ninfer") as artifact:
        assert directory == artifact.directory


def test_members_in_the_tables_are_those_that_the_reader_takes(pages: Any) -> None:
    for heading, required, optional in (
        ("Directory", {"components", "objects", "bindings", "uses", "files"}, 2),
        ("Components", {"config"}, 3),
        ("Objects", {"id", "kind", "shape", "format", "layout", "offset", "bytes"}, 2),
        ("Uses", {"parameter", "input"}, 2),
    ):
        first = "member of a tensor" if heading == "Objects" else "member"
        rows = pages.table("container", heading, first, "required")
        assert {row[first].names[0] for row in rows if row["required"] == "yes"} == required
        assert len(rows) == len(required) + optional
        for name in required:
            with pytest.raises(ArtifactError, match=f"lacks member '{name}'|lacks member 'kind'"):
                parse_directory(directory_without(heading, name), "m.ninfer")


def directory_without(heading: str, name: str) -> dict[str, Any]:
    tensor = TensorRecord("w", (2,), "bf16", "contiguous_le_v1", 0, 4).to_json()
    component: dict[str, Any] = {"config": {}}
    use = {"parameter": "p", "input": "x"}
    root: dict[str, Any] = {
        "components": {"text": component},
        "objects": [tensor],
        "bindings": {"p": {"object": "w"}},
        "uses": [use],
        "files": [{"path": None, "payload_bytes": 4}],
    }
    parse_directory(root, "m.ninfer")
    places = {"Directory": root, "Components": component, "Objects": tensor, "Uses": use}
    del places[heading][name]
    return root
