"""Damaged and hostile files: each fails at its stage, for its reason, and not before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ninfer_format import Artifact, ArtifactError, open_artifact

CASES = json.loads(
    (Path(__file__).parents[2] / "data/conformance/malformed/malformed.json").read_text("utf-8")
)
STAGES = ("open", "object", "part", "range", "decode")


def reach_stage(artifact: Artifact, stage: str, argument: str) -> None:
    """Do what fails at `stage`, after everything that must succeed before it."""
    if stage == "object":
        artifact.read_object(argument)
    elif stage in ("part", "range"):
        offset, length = map(int, argument.split("+"))
        artifact.read_range(offset, length)
    else:
        assert artifact.read_object(argument).size
        artifact.verify_object(argument)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case_fails_at_its_stage(case: dict[str, Any], conformance: Path) -> None:
    path = conformance / "malformed" / case["file"]
    expected_errors = OSError if case["category"] == "io" else ArtifactError
    if case["stage"] == "open":
        with pytest.raises(expected_errors) as raised:
            open_artifact(path)
    else:
        with open_artifact(path) as artifact, pytest.raises(expected_errors) as raised:
            reach_stage(artifact, case["stage"], case["argument"])
    error = raised.value
    if isinstance(error, ArtifactError):
        assert error.category == case["category"]
        assert str(path.parent) in str(error), "the message names the file"


@pytest.mark.parametrize(
    "case", [c for c in CASES if c["stage"] == "decode"], ids=lambda case: case["name"]
)
def test_decoding_refuses_the_words_that_upstream_refuses(
    case: dict[str, Any], conformance: Path
) -> None:
    path = conformance / "malformed" / case["file"]
    object_id = case["argument"]
    with open_artifact(path) as artifact:
        for decode in (artifact.words, artifact.decode_object):
            if case.get("upstream_accepts"):
                decode(object_id)
                continue
            with pytest.raises(ArtifactError) as raised:
                decode(object_id)
            assert raised.value.category == "codec"
            assert raised.value.object_id == object_id
            assert str(path) in str(raised.value), "the message names the file"


def test_ranges_before_a_missing_part_stay_readable(conformance: Path) -> None:
    with open_artifact(conformance / "malformed/part_missing.ninfer") as artifact:
        assert len(artifact.read_range(0, 600)) == 600


def test_every_stage_is_known() -> None:
    assert {case["stage"] for case in CASES} == set(STAGES)
    assert len(CASES) == 133


def test_the_base_of_all_cases_is_valid(conformance: Path) -> None:
    with open_artifact(conformance / "malformed/valid_base.ninfer") as artifact:
        for record in artifact.directory.objects:
            artifact.verify_object(record.id)


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        (b"NINFER\0\1" + bytes(30), "container version 1, this release reads 3", "convert"),
        (b"NINFER\0\2" + bytes(30), "container version 2, this release reads 3", "upgrade"),
        (b"NINFER\0\7" + bytes(30), "container version 7, this release reads 3", "newer"),
        (b"NINPRT\0\3" + b"\2" + bytes(30), "continuation file 2", "without .part-NNNN"),
        (b"GGUF\3\0\0\0" + bytes(30), "47 47 55 46 03 00 00 00", None),
        (b"abc", "61 62 63", None),
        (b"", "an empty file", None),
        (b"NINFER\0\3" + bytes(20), "expected 32 bytes, found 28", None),
    ],
)
def test_a_file_of_another_kind_is_named(
    content: bytes, message: str, hint: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "x.ninfer"
    path.write_bytes(content)
    with pytest.raises(ArtifactError) as raised:
        open_artifact(path)
    assert raised.value.category == "framing"
    assert message in str(raised.value)
    assert (hint or "") in (raised.value.hint or "")


def test_a_folder_is_the_operating_systems_error(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        open_artifact(tmp_path)
