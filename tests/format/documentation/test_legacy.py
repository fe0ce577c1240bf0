"""legacy.md: names, published models and the example of a table are those of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ninfer_format import TensorRecord
from ninfer_format.legacy import names as legacy_names
from ninfer_format.legacy.directory import LegacyDirectory
from ninfer_format.legacy.identities import PUBLISHED_MODELS
from ninfer_format.legacy.table import parse_table


def test_magic_bytes_of_older_versions_are_right(pages: Any, conformance: Path) -> None:
    cell = pages.table("legacy", "The file", "field", "content")[0]["content"]
    listed = re.fullmatch(r"`([\dA-F ]+)`, then (\d\d) or (\d\d)", cell)
    assert listed
    for version in (1, 2):
        path = conformance / f"artifacts/legacy/tiny_v{version}.ninfer"
        assert path.read_bytes()[:8] == bytes.fromhex(listed[1] + listed[version + 1])


def test_names_of_older_versions_are_complete(pages: Any) -> None:
    rows = pages.table("legacy", "Names", "version 1 and 2", "version 3", "since")
    for version in (1, 2):
        listed = {
            row["version 1 and 2"].name: row["version 3"].name
            for row in rows
            if int(row["since"]) <= version
        }
        known = legacy_names.FORMATS[version] | legacy_names.LAYOUTS[version]
        assert listed == known | legacy_names.ENCODINGS


def test_published_models_are_complete(pages: Any) -> None:
    rows = pages.table("legacy", "What upgrading does", "model_id", "weights_id", "objects")
    listed = {}
    for row in rows:
        counts = row["objects"].integers, row["bindings"].integers
        key = row["model_id"].name, row["weights_id"].name
        listed[key] = dict(zip(*counts, strict=True))
    assert listed == {
        (model.model_id, model.weights_id): model.bindings for model in PUBLISHED_MODELS
    }


def test_the_example_of_a_table_can_be_read(pages: Any) -> None:
    (block,) = pages.code("legacy", "json")
    embedding = TensorRecord("text/token_embedding", (8, 4), "bf16", "contiguous_le_v1", 0, 64)
    gate_up = TensorRecord(
        "text/layers/0/mlp/gate_up", (1536, 256), "bf16", "contiguous_le_v1", 256, 1536 * 512
    )
    directory = LegacyDirectory(2, "my-model", "mine", (embedding, gate_up))
    parsed = parse_table(block.encode(), directory)
    assert parsed.bindings["text/layers/0/mlp/gate"].parts[0].end == 768 * 256
    assert len(parsed.uses) == 1
