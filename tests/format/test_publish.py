from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ninfer_format.publish import StagedFiles


def stage(staged: StagedFiles, target: Path, content: bytes) -> None:
    os.pwrite(staged.create(target, len(content)), content, 0)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_nothing_is_visible_until_it_is_published(tmp_path: Path) -> None:
    with StagedFiles() as staged:
        stage(staged, tmp_path / "a", b"one")
        stage(staged, tmp_path / "b", b"two")
        assert all(name.startswith(".") and name.endswith(".tmp") for name in names(tmp_path))
        staged.publish_new()
        assert names(tmp_path) == ["a", "b"]
    assert (tmp_path / "a").read_bytes() == b"one"
    assert (tmp_path / "b").read_bytes() == b"two"
    assert (tmp_path / "a").stat().st_nlink == 1


def test_leaving_without_publishing_removes_everything(tmp_path: Path) -> None:
    with StagedFiles() as staged:
        stage(staged, tmp_path / "a", b"one")
    assert names(tmp_path) == []


def test_new_files_do_not_replace_and_are_published_together(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"mine")

    def publish() -> None:
        with StagedFiles() as staged:
            stage(staged, tmp_path / "a", b"one")
            stage(staged, tmp_path / "b", b"two")
            staged.publish_new()

    with pytest.raises(FileExistsError):
        publish()
    assert names(tmp_path) == ["b"]
    assert (tmp_path / "b").read_bytes() == b"mine"


def test_replacing_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with StagedFiles() as staged:
        stage(staged, tmp_path / "a", b"new")
        staged.publish_replacing()
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"new"


def test_descriptors_are_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with StagedFiles() as staged:
        for index in range(10):
            stage(staged, tmp_path / str(index), b"x")
        staged.publish_new()
    with StagedFiles() as staged:
        stage(staged, tmp_path / "other", b"x")
    assert len(os.listdir("/proc/self/fd")) == before


def test_files_have_the_mode_of_new_files(tmp_path: Path) -> None:
    previous = os.umask(0o027)
    try:
        with StagedFiles() as staged:
            stage(staged, tmp_path / "a", b"x")
            staged.publish_new()
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_the_longest_legal_name_can_be_published(tmp_path: Path) -> None:
    name = "é" * 127 + "x"
    with StagedFiles() as staged:
        stage(staged, tmp_path / name, b"x")
        staged.publish_new()
    assert names(tmp_path) == [name]
