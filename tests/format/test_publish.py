from __future__ import annotations

import gc
import itertools
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def test_files_of_a_block_that_is_never_left_are_removed(tmp_path: Path) -> None:
    """A signal may arrive just when a block is left, before anything could be done about it."""
    staged = StagedFiles()
    staged.make_folder(tmp_path / "new")
    stage(staged, tmp_path / "new" / "a", b"one")
    assert len(names(tmp_path / "new")) == 1
    del staged
    gc.collect()
    assert names(tmp_path) == []


def test_folders_are_removed_again_only_where_they_were_made_and_are_empty(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with StagedFiles() as staged:
        staged.make_folder(tmp_path / "old" / "new" / "newer")
        staged.make_folder(tmp_path / "old")
        (tmp_path / "old" / "new" / "mine").write_text("", encoding="utf-8")
    assert names(tmp_path / "old") == ["new"]
    assert names(tmp_path / "old" / "new") == ["mine"]
    with StagedFiles() as staged:
        staged.make_folder(tmp_path / "other" / "one")
        stage(staged, tmp_path / "other" / "one" / "a", b"x")
        staged.publish_new()
    assert names(tmp_path / "other" / "one") == ["a"]


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


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in folder.iterdir()}


def replace_set(folder: Path) -> None:
    """Replace a, b and c, of which c is new, and retire d."""
    with StagedFiles() as staged:
        for name in ("c", "b", "a"):
            stage(staged, folder / name, b"new")
        staged.publish_replacing([folder / "d"])


def test_a_set_replaces_another_one(tmp_path: Path) -> None:
    for name in ("a", "b", "d"):
        (tmp_path / name).write_text("old", encoding="utf-8")
    replace_set(tmp_path)
    assert content(tmp_path) == {"a": "new", "b": "new", "c": "new"}


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("steps", range(6))
def test_an_interruption_while_a_set_is_replaced_brings_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, is_done: bool
) -> None:
    for name in ("a", "b", "d"):
        (tmp_path / name).write_text("old", encoding="utf-8")
    count = itertools.count()

    def interrupted(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any) -> Any:
            now = next(count) == steps
            result = call(*arguments) if is_done or not now else None
            if now:
                raise KeyboardInterrupt
            return result

        return step

    # Three old files move aside, three new ones get their names.
    monkeypatch.setattr(Path, "rename", interrupted(Path.rename))
    monkeypatch.setattr(os, "link", interrupted(os.link))
    with pytest.raises(KeyboardInterrupt):
        replace_set(tmp_path)
    assert content(tmp_path) == {"a": "old", "b": "old", "d": "old"}


@pytest.mark.parametrize("force", [False, True])
def test_adopted_files_are_published_and_flushed_with_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    flushed: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "x").write_text("content", encoding="utf-8")
    (tmp_path / "target").mkdir()
    with StagedFiles() as staged:
        staged.adopt(tmp_path / "made" / "x", tmp_path / "target" / "a")
        if force:
            staged.publish_replacing()
        else:
            staged.publish_new()
    assert content(tmp_path / "target") == {"a": "content"}
    assert names(tmp_path / "made") == []
    assert flushed == [str(tmp_path / "made" / "x"), str(tmp_path / "target")]
