from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ninfer_format import Artifact, ArtifactError, UsageError, open_artifact, rename_artifact


def test_only_the_name_changes(all_formats: Artifact, tmp_path: Path):
    out = rename_artifact(all_formats, tmp_path / "o.ninfer", "Zürich ✓ 2")
    with open_artifact(out) as edited:
        assert edited.name == "Zürich ✓ 2"
        before, after = all_formats.directory, edited.directory
        assert after.metadata == {**before.metadata, "name": "Zürich ✓ 2"}
        assert replace(after, metadata=before.metadata) == before
        size = all_formats.payload_bytes
        assert edited.read_range(0, size) == all_formats.read_range(0, size)
        assert edited.artifact_id != all_formats.artifact_id


def test_an_artifact_without_a_name_gets_one(conformance: Path, tmp_path: Path):
    with open_artifact(conformance / "artifacts/minimal/minimal.ninfer") as minimal:
        assert minimal.name is None
        out = rename_artifact(minimal, tmp_path / "o.ninfer", "m")
    with open_artifact(out) as edited:
        assert edited.name == "m"


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800"])
def test_what_is_no_name_is_refused(base: Artifact, tmp_path: Path, name: str):
    with pytest.raises(ArtifactError) as caught:
        rename_artifact(base, tmp_path / "o.ninfer", name)
    assert caught.value.category in ("schema", "json")
    assert not (tmp_path / "o.ninfer").exists()


def test_the_same_name_is_refused(base: Artifact, tmp_path: Path):
    with pytest.raises(UsageError, match="its name is 'base' already"):
        rename_artifact(base, tmp_path / "o.ninfer", "base")


def test_the_old_artifact_stays_as_it_is(base: Artifact, tmp_path: Path):
    before = base.path.read_bytes()
    rename_artifact(base, tmp_path / "o.ninfer", "other")
    assert base.path.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"base.ninfer", "o.ninfer"}


def test_an_existing_file_is_not_replaced(base: Artifact, tmp_path: Path):
    (tmp_path / "o.ninfer").write_text("precious", encoding="utf-8")
    for out in (tmp_path / "o.ninfer", base.path):
        before = out.read_bytes()
        with pytest.raises(FileExistsError):
            rename_artifact(base, out, "other")
        assert out.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2
