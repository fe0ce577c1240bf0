from __future__ import annotations

import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from ninfer_format import Artifact, ArtifactError, open_artifact, split_artifact
from ninfer_format.edit import checked_rewrite
from ninfer_format.errors import FileLimitError


@pytest.mark.parametrize(("limit", "files"), [(10**9, 1), (20480, 3), (16384, 4), (12288, 6)])
def test_only_the_files_change(multipart: Artifact, tmp_path: Path, limit: int, files: int):
    out = split_artifact(multipart, tmp_path / "o.ninfer", limit)
    with open_artifact(out) as edited:
        assert len(edited.directory.files) == files
        assert all(path.stat().st_size <= limit for path in tmp_path.iterdir())
        before, after = multipart.directory, edited.directory
        assert replace(after, files=before.files) == before
        size = multipart.payload_bytes
        assert edited.read_range(0, size) == multipart.read_range(0, size)
        assert edited.artifact_id != multipart.artifact_id


def test_objects_of_unknown_encoding_are_copied(conformance: Path, tmp_path: Path):
    path = conformance / "artifacts/tolerated/unknown_encoding_present.ninfer"
    with open_artifact(path) as artifact:
        out = split_artifact(artifact, tmp_path / "o.ninfer", 8192)
        with open_artifact(out) as edited:
            assert edited.directory.objects == artifact.directory.objects
            assert edited.read_range(0, 64) == artifact.read_range(0, 64)


def test_a_limit_that_is_too_small_is_refused(multipart: Artifact, tmp_path: Path):
    with pytest.raises(FileLimitError) as caught:
        split_artifact(multipart, tmp_path / "o.ninfer", 4096)
    assert caught.value.limit == 4096
    assert list(tmp_path.iterdir()) == []
    assert split_artifact(multipart, tmp_path / "o.ninfer", caught.value.smallest)


def test_a_missing_file_of_the_source_leaves_nothing(conformance: Path, tmp_path: Path):
    folder = tmp_path / "partial"
    shutil.copytree(conformance / "artifacts/multipart", folder)
    (folder / "multipart.ninfer.part-0003").unlink()
    (tmp_path / "out").mkdir()
    with open_artifact(folder / "multipart.ninfer") as artifact, pytest.raises(FileNotFoundError):
        split_artifact(artifact, tmp_path / "out" / "o.ninfer", 10**9)
    assert list((tmp_path / "out").iterdir()) == []


def test_an_interrupt_leaves_nothing(multipart: Artifact, tmp_path: Path):
    def interrupt(num_bytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        split_artifact(multipart, tmp_path / "o.ninfer", 16384, advance=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_what_reads_back_differently_is_removed(
    multipart: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A disk that lies: the result is opened once more, and not left there."""

    def misread(path: Path) -> Artifact:
        artifact = open_artifact(path)
        artifact.directory = replace(artifact.directory, metadata={"name": "other"})
        return artifact

    monkeypatch.setattr(checked_rewrite, "open_artifact", misread)
    with pytest.raises(ArtifactError, match="was not written as it was meant") as caught:
        split_artifact(multipart, tmp_path / "o.ninfer", 16384)
    assert caught.value.category == "writer"
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_read_back_is_removed(
    multipart: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def unreadable(path: Path) -> Artifact:
        raise OSError("the disk fails")

    monkeypatch.setattr(checked_rewrite, "open_artifact", unreadable)
    with pytest.raises(OSError, match="the disk fails"):
        split_artifact(multipart, tmp_path / "o.ninfer", 10**9)
    assert list(tmp_path.iterdir()) == []


def test_new_files_have_the_permissions_of_new_files(multipart: Artifact, tmp_path: Path):
    old = os.umask(0o022)
    try:
        split_artifact(multipart, tmp_path / "o.ninfer", 16384)
    finally:
        os.umask(old)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {0o644}
