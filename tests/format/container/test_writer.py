"""Attacks on the writer: nothing is written twice, nothing is left out, nothing is left behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import (
    ArtifactError,
    ArtifactPlan,
    ArtifactWriter,
    Component,
    ResourceSpec,
    TensorSpec,
    open_artifact,
    plan_artifact,
)

SIZE = 20_000
DATA = np.random.default_rng(5).integers(0, 256, SIZE, dtype=np.uint8)


def write_with(writer: ArtifactWriter, *actions: Callable[[ArtifactWriter], object]) -> None:
    with writer:
        for action in actions:
            action(writer)


def write_everything(writer: ArtifactWriter) -> None:
    writer.write("w", 0, DATA)


@pytest.fixture
def plan() -> ArtifactPlan:
    """One resource and one tensor of 20,000 bytes over three files."""
    return plan_artifact(
        [ResourceSpec("r", b"res"), TensorSpec("w", (SIZE // 2,), "bf16", "contiguous_le_v1")],
        components={"text": Component({}, resources={"role": "r"})},
        bindings={},
        max_file_bytes=12_288,
    )


def test_regions_may_come_in_any_order(plan: ArtifactPlan, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "m.ninfer"
    cuts = [0, 1, 7777, 8192, 12_345, 19_999, SIZE]
    regions = list(pairwise(cuts))
    with ArtifactWriter(path, plan) as writer:
        for begin, end in [regions[i] for i in (3, 0, 5, 1, 4, 2)]:
            writer.write("w", begin, DATA[begin:end])
        writer.write("w", 5, b"")
    assert len(writer.file_paths) == 3
    assert sorted(path.parent.iterdir()) == sorted(writer.file_paths)
    with open_artifact(path) as artifact:
        assert artifact.read_object("w").tobytes() == DATA.tobytes()
        assert artifact.resource("text", "role") == b"res"
        assert artifact.artifact_id == writer.artifact_id
        assert artifact.read_range(3, 253) == bytes(253), "the gap before the tensor is zero"


def test_artifact_ids_are_fresh(plan: ArtifactPlan, tmp_path: Path) -> None:
    first = ArtifactWriter(tmp_path / "a.ninfer", plan)
    second = ArtifactWriter(tmp_path / "b.ninfer", plan)
    assert first.artifact_id != second.artifact_id
    with pytest.raises(ArtifactError, match="16 bytes"):
        ArtifactWriter(tmp_path / "c.ninfer", plan, b"short")


@pytest.mark.parametrize(
    ("object_id", "offset", "size", "message"),
    [
        pytest.param("w", 10, 1, "written before", id="same byte"),
        pytest.param("w", 0, SIZE, "written before", id="around"),
        pytest.param("w", 5, 6, "written before", id="overlap from the left"),
        pytest.param("w", 19, 5, "written before", id="overlap from the right"),
        pytest.param("w", SIZE - 1, 2, "outside", id="past the end"),
        pytest.param("w", -1, 1, "outside", id="before the start"),
        pytest.param("none", 0, 1, "not in the plan", id="unknown object"),
        pytest.param("r", 0, 1, "written before", id="resource"),
    ],
)
def test_a_bad_region_poisons_the_writer(
    object_id: str, offset: int, size: int, message: str, plan: ArtifactPlan, tmp_path: Path
) -> None:
    def attack(writer: ArtifactWriter) -> None:
        with pytest.raises(ArtifactError, match=message) as raised:
            writer.write(object_id, offset, bytes(size))
        assert raised.value.category == "writer"
        with pytest.raises(ArtifactError, match="writer is failed"):
            writer.write("w", 30, b"x")

    writer = ArtifactWriter(tmp_path / "m.ninfer", plan)
    with pytest.raises(ArtifactError, match="writer is failed"):
        write_with(writer, lambda writer: writer.write("w", 10, DATA[10:20]), attack)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("hole", [(0, 1), (SIZE - 1, SIZE), (8000, 8001), (0, SIZE)])
def test_a_hole_is_found_at_the_end(
    hole: tuple[int, int], plan: ArtifactPlan, tmp_path: Path
) -> None:
    writer = ArtifactWriter(tmp_path / "m.ninfer", plan)
    expected = rf"object 'w': bytes \[{hole[0]}, {hole[1]}\) were never written"
    with pytest.raises(ArtifactError, match=expected):
        write_with(
            writer,
            lambda writer: writer.write("w", hole[1], DATA[hole[1] :]),
            lambda writer: writer.write("w", 0, DATA[: hole[0]]),
        )
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ArtifactError, match="writer is closed"):
        write_everything(writer)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_exception_leaves_nothing(
    error: type[BaseException], plan: ArtifactPlan, tmp_path: Path
) -> None:
    def fail(writer: ArtifactWriter) -> None:
        assert len(list(tmp_path.iterdir())) == 3, "temporary files are there"
        raise error

    with pytest.raises(error):
        write_with(ArtifactWriter(tmp_path / "m.ninfer", plan), write_everything, fail)
    assert list(tmp_path.iterdir()) == []


def test_nothing_can_be_written_before_or_after(plan: ArtifactPlan, tmp_path: Path) -> None:
    writer = ArtifactWriter(tmp_path / "m.ninfer", plan)
    with pytest.raises(ArtifactError, match="writer is not open"):
        writer.write("w", 0, DATA)
    with writer:
        writer.write("w", 0, DATA)
    with pytest.raises(ArtifactError, match="writer is closed"):
        writer.write("w", 0, b"x")


@pytest.mark.parametrize("name", ["m.ninfer", "m.ninfer.part-0001", "m.ninfer.part-0002"])
@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_existing_targets_are_refused(
    name: str, kind: str, plan: ArtifactPlan, tmp_path: Path
) -> None:
    target = tmp_path / name
    if kind == "file":
        target.write_bytes(b"mine")
    else:
        target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError) as raised:
        ArtifactWriter(tmp_path / "m.ninfer", plan)
    assert raised.value.filename == str(target)
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("name", ["m.ninfer", "m.ninfer.part-0001", "m.ninfer.part-0002"])
def test_a_target_that_appears_meanwhile_is_kept(
    name: str, plan: ArtifactPlan, tmp_path: Path
) -> None:
    writer = ArtifactWriter(tmp_path / "m.ninfer", plan)
    with pytest.raises(FileExistsError):
        write_with(writer, write_everything, lambda _: (tmp_path / name).write_bytes(b"mine"))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"mine"


def test_parts_are_published_before_the_entry(
    plan: ArtifactPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[str] = []
    link = os.link

    def record(source: Path, target: Path) -> None:
        published.append(target.name)
        link(source, target)

    monkeypatch.setattr(os, "link", record)
    with ArtifactWriter(tmp_path / "m.ninfer", plan) as writer:
        writer.write("w", 0, DATA)
    assert published == ["m.ninfer.part-0001", "m.ninfer.part-0002", "m.ninfer"]


def test_an_interruption_while_publishing_withdraws_what_was_published(
    plan: ArtifactPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def interrupted_after(source: Path, target: Path) -> None:
        link(source, target)
        if target.name == "m.ninfer":
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", interrupted_after)
    writer = ArtifactWriter(tmp_path / "m.ninfer", plan)
    with pytest.raises(KeyboardInterrupt):
        write_with(writer, write_everything)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(
    plan: ArtifactPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ArtifactWriter(tmp_path / "m.ninfer", plan)

    def full(*arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_with(writer, lambda _: monkeypatch.setattr(os, "pwrite", full), write_everything)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_that_the_caller_swallows_is_not_published(
    plan: ArtifactPlan, tmp_path: Path
) -> None:
    def full(*arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    def swallow(writer: ArtifactWriter) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(OSError, match="No space left"):
                write_everything(writer)

    writer = ArtifactWriter(tmp_path / "m.ninfer", plan)
    with pytest.raises(ArtifactError, match="writer is failed"):
        write_with(writer, swallow)
    assert list(tmp_path.iterdir()) == []


def test_short_writes_are_continued(
    plan: ArtifactPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:1000], at))
    with ArtifactWriter(tmp_path / "m.ninfer", plan) as writer:
        writer.write("w", 0, DATA)
    with open_artifact(tmp_path / "m.ninfer") as artifact:
        assert artifact.read_object("w").tobytes() == DATA.tobytes()


def test_a_plan_knows_the_length_of_all_files(plan: ArtifactPlan, tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "m.ninfer", plan) as writer:
        writer.write("w", 0, DATA)
    written = sum(path.stat().st_size for path in writer.file_paths)
    assert writer.plan.file_bytes == written
    with open_artifact(tmp_path / "m.ninfer") as artifact:
        assert artifact.file_bytes == written


@pytest.mark.parametrize(
    "data", [np.zeros(4, np.uint16), DATA[:8:2]], ids=["wide items", "not contiguous"]
)
def test_other_data_than_contiguous_bytes_is_a_type_error(
    data: Any, plan: ArtifactPlan, tmp_path: Path
) -> None:
    writer = ArtifactWriter(tmp_path / "m.ninfer", plan)
    with pytest.raises(TypeError, match="contiguous bytes"):
        write_with(writer, lambda writer: writer.write("w", 0, data))
    assert list(tmp_path.iterdir()) == []
