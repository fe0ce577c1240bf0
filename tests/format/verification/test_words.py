"""Every word and all padding: what is legal is clean, what is not is found and placed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import TensorSpec, codec_for, grouped_absmax, open_artifact
from ninfer_format.container.stored_tensor import StoredTensor
from ninfer_format.verification import words
from ninfer_format.verification.artifact_check import Verification

Verify = Callable[..., Verification]

WHOLE = [
    "all_formats/all_formats",
    "minimal/minimal",
    "multipart/multipart",
    "multipart/reserve_growth",
    "multipart/exact_fit",
    "multipart/exact_fit_minus_1",
    "tolerated/spelling",
    "tolerated/gaps",
    "tolerated/odd_segments",
    "legacy/tiny_v3",
]
MALFORMED = json.loads(
    (Path(__file__).parents[2] / "data/conformance/malformed/malformed.json").read_text()
)
ILLEGAL_WORDS = [entry for entry in MALFORMED if entry["stage"] == "decode"]


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("jobs", [1, 3])
def test_artifacts_of_other_writers_are_clean(
    name: str, jobs: int, verify: Verify, conformance: Path
) -> None:
    result = verify(conformance / f"artifacts/{name}.ninfer", jobs=jobs)
    assert result.problems == ()
    assert result.checked.skipped_objects == 0


@pytest.mark.parametrize("entry", ILLEGAL_WORDS, ids=lambda entry: entry["name"])
def test_illegal_words_name_the_object(
    entry: dict[str, Any], verify: Verify, conformance: Path
) -> None:
    """Also those that a decoder does not look at."""
    (problem,) = verify(conformance / "malformed" / entry["file"]).problems
    assert problem.category == "codec"
    assert problem.object == entry["argument"]
    assert problem.offset is not None


@pytest.mark.parametrize("name", ["q8_code_minus_128", "q8_padding_lane_nonzero"])
def test_the_place_of_a_problem(name: str, verify: Verify, conformance: Path) -> None:
    (problem,) = verify(conformance / f"malformed/{name}.ninfer").problems
    assert problem.offset is not None
    if name == "q8_padding_lane_nonzero":
        with open_artifact(conformance / f"malformed/{name}.ninfer") as artifact:
            assert artifact.read_range(problem.offset, 1) == b"\5"
    else:
        assert "at [" in problem.message


ROWS, COLUMNS = 3001, 300
SPEC = TensorSpec("w", (ROWS, COLUMNS), "q4_g64_fp16", "row_split_k128_v1")


@pytest.fixture
def large(write_artifact: Any) -> Path:
    """An object of several slices, with padding columns, between two others."""
    values = np.random.default_rng(0).standard_normal((ROWS, COLUMNS))
    before = TensorSpec("before", (3,), "bf16", "contiguous_le_v1")
    after = TensorSpec("after", (), "fp32", "contiguous_le_v1")
    path: Path = write_artifact(
        [before, SPEC, after],
        {
            "before": np.arange(3, dtype=np.uint16),
            "w": grouped_absmax(values, SPEC.format),
            "after": np.array(1, np.uint32),
        },
    )
    return path


def change(path: Path, offset: int, data: bytes) -> None:
    """Change bytes of the payload."""
    with open_artifact(path) as artifact:
        start = path.stat().st_size - artifact.payload_bytes
    with path.open("r+b") as file:
        file.seek(start + offset)
        file.write(data)


def test_each_slice_is_reported_with_rows_of_the_object(large: Path, verify: Verify) -> None:
    codec = codec_for(SPEC.format, SPEC.layout, SPEC.shape)
    scale = codec.geometry.planes["scale"]
    with open_artifact(large) as artifact:
        begin = artifact.record("w").offset
    row_bytes = scale.num_bytes // ROWS
    for row in (5, 2990):
        change(large, begin + scale.offset + row * row_bytes + 2, b"\0\x80")
    problems = verify(large).problems
    assert [problem.object for problem in problems] == ["w", "w"]
    assert "at [5, 1]" in problems[0].message
    assert "at [2990, 1]" in problems[1].message


def test_padding_inside_rows_has_an_exact_offset(large: Path, verify: Verify) -> None:
    codec = codec_for(SPEC.format, SPEC.layout, SPEC.shape)
    row_bytes = codec.geometry.planes["base"].num_bytes // ROWS
    with open_artifact(large) as artifact:
        begin = artifact.record("w").offset
    place = begin + 2222 * row_bytes + row_bytes - 1
    change(large, place, b"\x10")
    (problem,) = verify(large).problems
    assert (problem.category, problem.object, problem.offset) == ("codec", "w", place)
    assert "padding is not zero (expected 0, found 16)" in problem.message


def test_padding_between_planes_is_checked(large: Path, verify: Verify) -> None:
    codec = codec_for(SPEC.format, SPEC.layout, SPEC.shape)
    (gap, length) = codec.padding[0]
    with open_artifact(large) as artifact:
        begin = artifact.record("w").offset
    change(large, begin + gap + length - 1, b"\1")
    (problem,) = verify(large).problems
    assert (problem.object, problem.offset) == ("w", begin + gap + length - 1)


def test_garbage_is_listed_up_to_a_limit(large: Path, verify: Verify) -> None:
    with open_artifact(large) as artifact:
        record = artifact.record("w")
    change(large, record.offset, os.urandom(record.num_bytes))
    few = words.MOST_PROBLEMS
    problems = verify(large).problems
    # Three slices and the gap between planes: fewer than the limit, so all are there.
    assert 2 <= len(problems) <= few
    assert {problem.object for problem in problems} == {"w"}


def test_more_problems_than_the_limit_are_counted(
    large: Path, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_artifact(large) as artifact:
        record = artifact.record("w")
    codec = codec_for(SPEC.format, SPEC.layout, SPEC.shape)
    scale = codec.geometry.planes["scale"]
    change(large, record.offset + scale.offset, b"\xff" * scale.num_bytes)
    monkeypatch.setattr(words, "SLICE_BYTES", 20_000)
    monkeypatch.setattr(words, "MOST_PROBLEMS", 3)
    problems = verify(large).problems
    assert len(problems) == 4
    slices = -(-ROWS // (20_000 * ROWS // record.num_bytes))
    assert problems[3].message == f"and {slices - 3} more slices with problems"


def test_slices_that_are_large_are_checked_one_at_a_time(
    verify: Verify, conformance: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[int] = []
    most: list[int] = []

    def row_slice(self: StoredTensor, begin: int, end: int) -> tuple[Any, Any]:
        running.append(1)
        most.append(len(running))
        time.sleep(0.002)
        result = original(self, begin, end)
        running.pop()
        return result

    original = StoredTensor.row_slice
    monkeypatch.setattr(StoredTensor, "row_slice", row_slice)
    path = conformance / "artifacts/all_formats/all_formats.ninfer"
    verify(path, jobs=4)
    assert max(most) > 1
    most.clear()
    monkeypatch.setattr(words, "_LARGE_BYTES", 0)
    assert verify(path, jobs=4).problems == ()
    assert max(most) == 1


SPARSE = """
import sys
from ninfer_format.cli import main
sys.argv = ["ninfer-inspect", *sys.argv[1:]]
try:
    main()
finally:
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(peak.split()[1], file=sys.stderr)
"""


def test_memory_does_not_grow_with_the_artifact(tmp_path: Path, write_sparse: Any) -> None:
    """500 MB of zeros, which are legal words, under the bound of 200 MB."""
    specs = [
        TensorSpec("q8", (50_000, 4096), "q8_g32_fp16", "row_split_k128_v1"),
        TensorSpec("flat", (1, 150_000_000), "bf16", "contiguous_le_v1"),
    ]
    path = write_sparse(specs)
    assert path.stat().st_size > 500_000_000
    result = subprocess.run(
        [sys.executable, "-c", SPARSE, str(path), "--verify", "--json", "--no-progress"],
        capture_output=True,
        text=True,
        check=False,
    )
    document = json.loads(result.stdout)
    assert document["problems"] == []
    assert document["checked"]["objects"] == 2
    assert int(result.stderr.split()[-1]) * 1024 < 200_000_000
