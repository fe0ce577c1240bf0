"""What reaches the disk and when, and what remains if the disk is full or fails."""

from __future__ import annotations

import errno
import itertools
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import (
    ArtifactPlan,
    ArtifactWriter,
    Component,
    ResourceSpec,
    TensorSpec,
    open_artifact,
    plan_artifact,
)
from ninfer_format.container import file_set

DATA = np.random.default_rng(5).integers(0, 256, 20_000, dtype=np.uint8)
NAMES = ["m.ninfer.part-0001", "m.ninfer.part-0002", "m.ninfer"]


@pytest.fixture
def plan() -> ArtifactPlan:
    """One resource and one tensor of 20,000 bytes over three files."""
    return plan_artifact(
        [ResourceSpec("r", b"res"), TensorSpec("w", (10_000,), "bf16", "contiguous_le_v1")],
        components={"text": Component({}, resources={"role": "r"})},
        bindings={},
        max_file_bytes=12_288,
    )


def write(path: Path, plan: ArtifactPlan, piece: int = 1000) -> None:
    with ArtifactWriter(path, plan) as writer:
        for begin in range(0, DATA.size, piece):
            writer.write("w", begin, DATA[begin : begin + piece])


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """System calls that matter here, each with the name of its file."""
    seen: list[tuple[str, str]] = []

    def recorded(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def record(*arguments: Any) -> Any:
            path = arguments[1] if name == "link" else os.readlink(f"/proc/self/fd/{arguments[0]}")
            seen.append((name, Path(path).name))
            return call(*arguments)

        return record

    for name in ("pwrite", "fdatasync", "fsync", "link"):
        monkeypatch.setattr(os, name, recorded(name))
    return seen


def test_files_are_on_disk_before_they_have_names_and_the_names_at_the_end(
    plan: ArtifactPlan, tmp_path: Path, events: list[tuple[str, str]]
) -> None:
    write(tmp_path / "new" / "m.ninfer", plan)
    last_write = max(index for index, (call, _) in enumerate(events) if call == "pwrite")
    after = events[last_write + 1 :]
    assert [call for call, _ in after[:6]] == ["fsync"] * 3 + ["link"] * 3
    assert [name for _, name in after[3:6]] == NAMES, "the entry appears last"
    assert sorted(after[6:]) == [("fsync", "new"), ("fsync", tmp_path.name)]
    assert not [event for event in events if event[0] == "fdatasync"]


def test_a_bounded_number_of_bytes_waits_for_the_disk(
    plan: ArtifactPlan,
    tmp_path: Path,
    events: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_set, "SYNC_BYTES", 3000)
    write(tmp_path / "m.ninfer", plan)
    waiting: dict[str, int] = {}
    for call, name in events:
        if call == "pwrite":
            waiting[name] = waiting.get(name, 0) + 1
            # Headers and directory, then pieces of 1000 bytes, one of which was cut in two.
            assert waiting[name] <= 6
        elif call == "fdatasync":
            waiting[name] = 0
    assert 5 <= sum(call == "fdatasync" for call, _ in events) <= DATA.size // 3000 + len(NAMES)


def test_long_pieces_are_written_in_chunks(
    plan: ArtifactPlan,
    tmp_path: Path,
    events: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_set, "CHUNK_BYTES", 512)
    write(tmp_path / "m.ninfer", plan, piece=DATA.size)
    assert sum(call == "pwrite" for call, _ in events) > DATA.size // 512
    with open_artifact(tmp_path / "m.ninfer") as artifact:
        assert artifact.read_object("w").tobytes() == DATA.tobytes()


CALLS = {"open": 3, "ftruncate": 3, "pwrite": 25, "fdatasync": 5, "fsync": 4, "link": 3}


@pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name, count in CALLS.items() for n in range(count)]
)
def test_a_full_disk_leaves_nothing_wherever_it_is_noticed(
    name: str, number: int, plan: ArtifactPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_set, "SYNC_BYTES", 3000)
    count = itertools.count()
    call = getattr(os, name)

    def fail(*arguments: Any) -> Any:
        if next(count) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return call(*arguments)

    monkeypatch.setattr(os, name, fail)
    with pytest.raises(OSError, match="No space left on device"):
        write(tmp_path / "new" / "m.ninfer", plan)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "m.ninfer", plan)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(NAMES)


@contextmanager
def file_limit(limit: int) -> Iterator[None]:
    """Bound the files that this process writes; not for longer, for pytest may write to one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("limit", [0, 4095, 4096, 8192, 12_287])
def test_the_operating_systems_limit_leaves_nothing(
    limit: int, plan: ArtifactPlan, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="File too large") as raised, file_limit(limit):
        write(tmp_path / "new" / "m.ninfer", plan)
    assert raised.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


def test_folders_that_were_there_stay(plan: ArtifactPlan, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "m.ninfer.part-0001").mkdir()
    with pytest.raises(FileExistsError):
        write(tmp_path / "old" / "m.ninfer", plan)
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["m.ninfer.part-0001"]


def test_files_have_the_mode_of_new_files(plan: ArtifactPlan, tmp_path: Path) -> None:
    previous = os.umask(0o022)
    try:
        write(tmp_path / "m.ninfer", plan)
    finally:
        os.umask(previous)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}
