from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ninfer_format import (
    ArtifactError,
    ArtifactWriter,
    Binding,
    Component,
    ResourceSpec,
    TensorSpec,
    open_artifact,
    plan_artifact,
)
from ninfer_format.container import reader, segments
from ninfer_format.container.segments import segment_payload
from ninfer_format.errors import FileLimitError

SEGMENTS = json.loads(
    (Path(__file__).parents[2] / "data/conformance/vectors/writer_segments.json").read_text()
)["cases"]


def plan_of(specs: list[Any], **arguments: Any) -> Any:
    defaults: dict[str, Any] = {"components": {"text": Component({})}, "bindings": {}}
    return plan_artifact(specs, **(defaults | arguments))


@pytest.mark.parametrize("case", SEGMENTS, ids=str)
def test_segments_match_the_table(case: dict[str, Any]) -> None:
    arguments = (case["entry_payload_start"], case["payload_bytes"], case["max_file_bytes"])
    if "error" in case:
        with pytest.raises(ArtifactError) as raised:
            segment_payload(*arguments)
        assert raised.value.category == "writer"
    else:
        assert list(segment_payload(*arguments)) == case["files"]


def test_tensors_are_aligned_and_resources_are_not() -> None:
    plan = plan_of(
        [
            ResourceSpec("r1", b"abc"),
            ResourceSpec("r2", b"x" * 300),
            TensorSpec("a", (3,), "bf16", "contiguous_le_v1"),
            ResourceSpec("r3", b"y"),
            TensorSpec("b", (2, 130), "q5_g64_fp16", "row_split_k128_v1"),
        ]
    )
    assert [(record.id, record.offset, record.num_bytes) for record in plan.directory.objects] == [
        ("r1", 0, 3),
        ("r2", 3, 300),
        ("a", 512, 6),
        ("r3", 518, 1),
        ("b", 768, 528),
    ]
    assert plan.directory.payload_bytes == 768 + 528
    assert plan.resources == {"r1": b"abc", "r2": b"x" * 300, "r3": b"y"}


def test_the_directory_is_padded_so_that_the_payload_follows_at_once() -> None:
    plan = plan_of([ResourceSpec("r", b"x")], metadata={"note": "z" * 5000})
    assert len(plan.json_bytes) % 4096 == 4064
    assert plan.entry_payload_start == 32 + len(plan.json_bytes)
    assert json.loads(plan.json_bytes) == plan.directory.to_json()


def test_a_growing_table_of_files_may_need_a_longer_reserve() -> None:
    plan = plan_of([ResourceSpec("r", bytes(2_000_000))], max_file_bytes=16_384)
    assert len(plan.segments) > 100
    assert sum(plan.segments) == 2_000_000
    assert len(plan.json_bytes) > 4064
    assert plan.entry_payload_start + plan.segments[0] <= 16_384
    assert all(segment % 4096 == 0 and segment + 4096 <= 16_384 for segment in plan.segments[:-1])
    assert plan.directory.files[1].path == "model.ninfer.part-0001"


def test_a_directory_is_as_long_as_a_reader_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MAX_JSON_BYTES", 4064)
    fits = {"metadata": {"note": "z" * 3000}}
    assert len(plan_of([ResourceSpec("r", b"x")], **fits).json_bytes) == 4064
    with pytest.raises(ArtifactError, match="directory is too long") as raised:
        plan_of([ResourceSpec("r", b"x")], metadata={"note": "z" * 5000})
    assert raised.value.category == "writer"


def test_a_directory_takes_no_more_memory_than_a_reader_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (segments, reader):
        monkeypatch.setattr(module, "SPARE_BYTES", 0)
    with pytest.raises(ArtifactError, match="too much memory to be read") as raised:
        plan_of([ResourceSpec("r", b"x")])
    assert raised.value.category == "writer"
    long = [ResourceSpec("r", bytes(100_000))]
    with pytest.raises(FileLimitError) as too_short:
        plan_of(long, max_file_bytes=8192)
    plan = plan_of(long, max_file_bytes=too_short.value.smallest)
    assert len(plan.segments) > 1
    with ArtifactWriter(tmp_path / "model.ninfer", plan):
        pass
    open_artifact(tmp_path / "model.ninfer").close()


def test_part_names_have_at_least_four_digits() -> None:
    plan = plan_of([ResourceSpec("r", bytes(4096 * 10_010))], max_file_bytes=700_000)
    names = [file.path for file in plan.directory.files]
    assert names[-1] == f"model.ninfer.part-{len(names) - 1:04d}"


def test_the_entry_name_may_change_the_cut() -> None:
    plan = plan_of([ResourceSpec("r", bytes(50_000))], max_file_bytes=12_288)
    renamed = plan.for_entry("a name that is much longer than the first one.ninfer")
    assert renamed.directory.files[1].path == f"{renamed.entry_name}.part-0001"
    assert renamed.directory.objects == plan.directory.objects
    assert plan.for_entry("model.ninfer") is plan


@pytest.mark.parametrize(
    ("specs", "category"),
    [
        pytest.param([], "schema", id="nothing"),
        pytest.param([ResourceSpec("r", b"")], "schema", id="empty resource"),
        pytest.param([ResourceSpec("", b"x")], "schema", id="bad id"),
        pytest.param([ResourceSpec("r", b"x"), ResourceSpec("r", b"y")], "objects", id="same id"),
        pytest.param([ResourceSpec("r", b"x", "zstd_v1")], "encoding", id="resource encoding"),
        pytest.param([TensorSpec("w", (2,), "fp16", "contiguous_le_v1")], "encoding", id="format"),
        pytest.param([TensorSpec("w", (2,), "bf16", "planar_v1")], "encoding", id="layout"),
        pytest.param([TensorSpec("w", (2,), "bf16", "row_split_k128_v1")], "encoding", id="pair"),
        pytest.param([TensorSpec("w", (0,), "bf16", "contiguous_le_v1")], "encoding", id="shape"),
        pytest.param(
            [TensorSpec("w", (2,), "bf16", "contiguous_le_v1", divisors=2)],
            "encoding",
            id="divisors",
        ),
    ],
)
def test_bad_specs_are_refused(specs: list[Any], category: str) -> None:
    with pytest.raises(ArtifactError) as raised:
        plan_of(specs)
    assert raised.value.category == category


@pytest.mark.parametrize(
    ("arguments", "category"),
    [
        pytest.param({"components": {}}, "schema", id="no text"),
        pytest.param({"bindings": {"p": Binding(object="none")}}, "reference", id="dangling"),
        pytest.param({"bindings": {"p": Binding()}}, "schema", id="neither form"),
        pytest.param({"metadata": {"x": float("nan")}}, "json", id="NaN"),
        pytest.param({"metadata": {1: 2, "1": 3}}, "json", id="members that become equal"),
        pytest.param({"max_file_bytes": 4096}, "writer", id="limit too small"),
    ],
)
def test_bad_directories_are_refused(arguments: dict[str, Any], category: str) -> None:
    with pytest.raises(ArtifactError) as raised:
        plan_of([ResourceSpec("r", b"x")], **arguments)
    assert raised.value.category == category
