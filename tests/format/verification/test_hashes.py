"""Known hashes: any change of a byte is found, and the object named."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_format import ArtifactError, codec_of, open_artifact
from ninfer_format.verification.artifact_check import Verification
from ninfer_format.verification.conversion_report import read_report, report_path

Verify = Callable[..., Verification]


def test_the_builtin_model_is_clean(verify: Verify, builtin_copy: Path) -> None:
    result = verify(builtin_copy)
    assert result.problems == ()
    assert result.notes == ()
    assert result.checked.object_hashes == result.checked.objects == 174
    assert result.checked.directory_hash
    assert result.checked.report == report_path(builtin_copy).name


def flip(path: Path, position: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


def q8_scale(path: Path, group: int) -> tuple[str, int]:
    """A Q8 object, and the position in the file of one of its scales."""
    with open_artifact(path) as artifact:
        record = next(r for r in artifact.directory.tensors if r.format == "q8_g32_fp16")
        plane = codec_of(record).geometry.planes["scale"]
        start = path.stat().st_size - artifact.payload_bytes
        return record.id, start + record.offset + plane.offset + 2 * group


@pytest.mark.parametrize("bit", range(16))
def test_one_flipped_bit_in_a_q8_scale_names_the_object(
    bit: int, verify: Verify, builtin_copy: Path
) -> None:
    object_id, position = q8_scale(builtin_copy, group=1000)
    flip(builtin_copy, position + bit // 8, bit % 8)
    problems = verify(builtin_copy).problems
    assert {problem.object for problem in problems} == {object_id}
    assert [problem.category for problem in problems].count("hash") == 1


def test_without_the_report_the_rules_of_words_find_a_flipped_sign(
    verify: Verify, builtin_copy: Path
) -> None:
    """A flip that gives another legal word cannot be found without a hash."""
    report_path(builtin_copy).unlink()
    object_id, position = q8_scale(builtin_copy, group=1000)
    flip(builtin_copy, position + 1, 7)
    result = verify(builtin_copy)
    assert [(p.category, p.object) for p in result.problems] == [("codec", object_id)]
    assert result.checked.report is None
    assert result.notes == (f"no hashes are known: there is no {report_path(builtin_copy).name}",)


@pytest.fixture(scope="module")
def small(conformance: Path, tmp_path_factory: pytest.TempPathFactory, write_report: Any) -> Path:
    path = tmp_path_factory.mktemp("small") / "m.ninfer"
    path.write_bytes((conformance / "artifacts/all_formats/all_formats.ninfer").read_bytes())
    write_report(path)
    return path


@settings(max_examples=60)
@given(place=st.floats(0, 0.999999), bit=st.integers(0, 7))
def test_any_flipped_bit_of_a_file_is_found(
    place: float, bit: int, small: Path, verify: Verify
) -> None:
    """But for the gaps between objects, whose bytes mean nothing."""
    content = small.read_bytes()
    position = int(place * len(content))
    copy = small.with_name("copy.ninfer")
    copy.write_bytes(content)
    report_path(copy).write_bytes(report_path(small).read_bytes())
    flip(copy, position, bit)
    with open_artifact(small) as artifact:
        offset = position - (len(content) - artifact.payload_bytes)
        owners = [r.id for r in artifact.directory.objects if r.offset <= offset < r.end]
    try:
        problems = verify(copy).problems
    except ArtifactError:
        assert offset < 0
        return
    if owners:
        assert {problem.object for problem in problems} == set(owners)
    else:
        assert bool(problems) == (offset < 0)


def test_a_file_hash_is_enough(verify: Verify, small: Path, write_report: Any) -> None:
    content = small.read_bytes()
    copy = small.with_name("files.ninfer")
    copy.write_bytes(content)
    files = [{"path": "other name", "sha256": sha256(content).hexdigest()}]
    members: dict[str, Any] = {"object_sha256": {}, "directory_sha256": None, "files": files}
    write_report(copy, **members)
    result = verify(copy)
    assert result.problems == ()
    assert (result.checked.object_hashes, result.checked.file_hashes) == (0, 1)
    flip(copy, len(content) - 1, 0)
    problems = [p for p in verify(copy).problems if p.category == "hash"]
    assert [problem.file for problem in problems] == [copy.name]


def test_file_hashes_go_by_the_order_of_the_files(
    verify: Verify, conformance: Path, tmp_path: Path, write_report: Any
) -> None:
    names = ["multipart.ninfer", *(f"multipart.ninfer.part-000{i}" for i in (1, 2, 3))]
    hashes = []
    for name in names:
        content = (conformance / "artifacts/multipart" / name).read_bytes()
        (tmp_path / name).write_bytes(content)
        hashes.append({"sha256": sha256(content).hexdigest()})
    entry = tmp_path / names[0]
    write_report(entry, object_sha256={}, directory_sha256=None, files=hashes)
    assert verify(entry).checked.file_hashes == 4
    (tmp_path / names[2]).unlink()
    result = verify(entry)
    assert result.checked.file_hashes == 3
    assert [(p.category, p.file) for p in result.problems] == [("io", names[2])]


def test_objects_are_those_of_the_report(verify: Verify, small: Path, write_report: Any) -> None:
    copy = small.with_name("others.ninfer")
    copy.write_bytes(small.read_bytes())
    hashes = json.loads(report_path(small).read_text())["object_sha256"]
    first, *_ = hashes
    changed = {"invented": "0" * 64} | {k: v for k, v in hashes.items() if k != first}
    write_report(copy, object_sha256=changed)
    found = {(p.object, p.message) for p in verify(copy).problems}
    name = report_path(copy).name
    assert found == {
        (first, f"object is not in {name}"),
        ("invented", f"object of {name} is missing"),
    }


def test_a_report_of_another_artifact_is_a_problem(
    verify: Verify, small: Path, write_report: Any
) -> None:
    copy = small.with_name("foreign.ninfer")
    copy.write_bytes(small.read_bytes())
    write_report(copy, artifact_id="0" * 32)
    result = verify(copy)
    (problem,) = result.problems
    assert (problem.category, problem.file) == ("hash", report_path(copy).name)
    assert result.checked.report is None


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"[]",
        b"\xff",
        b'{"object_sha256": []}',
        b'{"object_sha256": {"a": 3}}',
        b'{"directory_sha256": "0123"}',
        b'{"files": [{"sha256": "' + b"G" * 64 + b'"}]}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_report_is_a_problem_and_everything_else_is_checked(
    text: bytes, verify: Verify, small: Path
) -> None:
    copy = small.with_name("damaged.ninfer")
    copy.write_bytes(small.read_bytes())
    report_path(copy).write_bytes(text)
    result = verify(copy)
    (problem,) = result.problems
    assert problem.category in ("json", "schema")
    assert problem.file == report_path(copy).name
    assert result.checked.objects == 36


def test_a_report_that_would_fill_the_memory_is_a_problem(verify: Verify, small: Path) -> None:
    copy = small.with_name("long.ninfer")
    copy.write_bytes(small.read_bytes())
    report_path(copy).write_bytes(b"[" + b"[]," * 4_000_000 + b"[]]")
    (problem,) = verify(copy).problems
    assert (problem.category, problem.file) == ("json", report_path(copy).name)
    assert problem.message.startswith("report would take too much memory")


def test_a_report_that_is_no_file_is_a_problem(verify: Verify, small: Path) -> None:
    copy = small.with_name("folder.ninfer")
    copy.write_bytes(small.read_bytes())
    report_path(copy).mkdir()
    (problem,) = verify(copy).problems
    assert problem.category == "io"


@pytest.mark.parametrize("text", [b"{}", b'{"files": {"a": 1}}', b'{"files": [{"path": "x"}]}'])
def test_a_report_without_hashes_is_a_note(text: bytes, verify: Verify, small: Path) -> None:
    copy = small.with_name("empty.ninfer")
    copy.write_bytes(small.read_bytes())
    report_path(copy).write_bytes(text)
    result = verify(copy)
    assert result.problems == ()
    assert any("holds none" in note for note in result.notes)


def test_a_report_is_read_as_it_was_written(small: Path) -> None:
    report = read_report(small)
    assert report is not None
    content = small.read_bytes()
    with open_artifact(small) as artifact:
        start = len(content) - artifact.payload_bytes
        record = artifact.directory.objects[3]
        data = np.frombuffer(content, np.uint8)[start + record.offset : start + record.end]
    assert report.objects[record.id] == sha256(data.tobytes()).hexdigest()
    assert report.directory == sha256(content[:start]).hexdigest()
    assert read_report(small.with_name("none.ninfer")) is None
