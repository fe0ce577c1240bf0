"""Tables that a user writes for a file of unknown identity."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ninfer_format import ArtifactError, LegacyDirectory, open_legacy, parse_table


@pytest.fixture(scope="module")
def tiny(legacy: Path) -> LegacyDirectory:
    with open_legacy(legacy / "tiny_v2.ninfer") as artifact:
        return artifact.directory


@pytest.fixture
def table(legacy: Path) -> dict[str, Any]:
    expected = json.loads((legacy / "tiny_v3.expected.json").read_text("utf-8"))
    return {key: expected["directory"][key] for key in ("components", "bindings", "uses")}


def test_a_table_is_what_a_version_3_directory_says(tiny: LegacyDirectory, table: dict[str, Any]):
    parsed = parse_table(json.dumps(table).encode(), tiny)
    assert {key: value.to_json() for key, value in parsed.components.items()} == table["components"]
    assert {key: value.to_json() for key, value in parsed.bindings.items()} == table["bindings"]
    assert [use.to_json() for use in parsed.uses] == table["uses"]


def lacks_uses(table: dict[str, Any]) -> None:
    del table["uses"]


def has_files(table: dict[str, Any]) -> None:
    table["files"] = []


def has_objects(table: dict[str, Any]) -> None:
    table["objects"] = []


def has_no_text(table: dict[str, Any]) -> None:
    table["components"] = {"vision": {"config": {}}}


def binds_nothing(table: dict[str, Any]) -> None:
    table["bindings"]["text/x"] = {"object": "text/x"}


def binds_a_resource(table: dict[str, Any]) -> None:
    table["bindings"]["text/x"] = {"object": "frontend/tokenizer.json"}


def binds_beyond_the_object(table: dict[str, Any]) -> None:
    table["bindings"]["text/x"] = {"parts": [{"object": "text/final_norm", "range": [0, 8]}]}


def uses_what_is_not_bound(table: dict[str, Any]) -> None:
    table["uses"].append({"parameter": "text/x", "input": "y"})


def has_an_unknown_policy(table: dict[str, Any]) -> None:
    table["uses"][0]["activation_policy"] = "AllowA2"


def has_a_role_without_a_resource(table: dict[str, Any]) -> None:
    table["components"]["text"]["resources"]["merges.txt"] = "frontend/merges.txt"


@pytest.mark.parametrize(
    ("damage", "category"),
    [
        (lacks_uses, "schema"),
        (has_files, "schema"),
        (has_objects, "schema"),
        (has_no_text, "schema"),
        (has_an_unknown_policy, "schema"),
        (binds_nothing, "reference"),
        (binds_a_resource, "reference"),
        (binds_beyond_the_object, "reference"),
        (uses_what_is_not_bound, "reference"),
        (has_a_role_without_a_resource, "reference"),
    ],
)
def test_a_table_is_judged_like_a_version_3_directory(
    tiny: LegacyDirectory,
    table: dict[str, Any],
    damage: Callable[[dict[str, Any]], None],
    category: str,
):
    damage(table)
    with pytest.raises(ArtifactError) as caught:
        parse_table(json.dumps(table).encode(), tiny)
    assert caught.value.category == category


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"uses": NaN}', b"\xff", b"[" * 10**6])
def test_a_table_that_is_no_table_is_refused(tiny: LegacyDirectory, text: bytes):
    with pytest.raises(ArtifactError) as caught:
        parse_table(text, tiny)
    assert caught.value.category in ("json", "schema")


def test_a_table_beyond_all_measure_is_not_parsed(tiny: LegacyDirectory):
    with pytest.raises(ArtifactError, match="table is too long"):
        parse_table(bytes(100_000_001), tiny)
