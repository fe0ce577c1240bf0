from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ninfer_format import (
    Artifact,
    ArtifactError,
    UsageError,
    open_artifact,
    set_activation_policy,
)


def policies(artifact: Artifact) -> dict[tuple[str, str], str | None]:
    return {(use.parameter, use.input): use.activation_policy for use in artifact.directory.uses}


def test_all_uses_of_matching_parameters_change(base: Artifact, tmp_path: Path):
    out = tmp_path / "o.ninfer"
    assert set_activation_policy(base, out, ["text/*"], "AllowA8") == 2
    with open_artifact(out) as edited:
        assert policies(edited) == {
            ("text/output_head", "text/final_hidden"): "AllowA8",
            ("text/output_head", "mtp/final_hidden"): "AllowA8",
            ("proposal/head", "mtp/final_hidden"): "A16Only",
        }
        before, after = base.directory, edited.directory
        assert replace(after, uses=before.uses) == before
        for old, new in zip(before.uses, after.uses, strict=True):
            assert new.auxiliaries == old.auxiliaries
        assert edited.artifact_id != base.artifact_id
        assert edited.read_range(0, edited.payload_bytes) == base.read_range(0, base.payload_bytes)


def test_only_changed_uses_are_counted(base: Artifact, tmp_path: Path):
    out = tmp_path / "o.ninfer"
    assert set_activation_policy(base, out, ["proposal/*", "*/output_head"], "AllowA4") == 1
    with open_artifact(out) as edited:
        assert set(policies(edited).values()) == {"AllowA4"}


def test_a_missing_policy_is_set(all_formats: Artifact, tmp_path: Path):
    chosen = next(use for use in all_formats.directory.uses if use.activation_policy is None)
    count = sum(use.parameter == chosen.parameter for use in all_formats.directory.uses)
    out = tmp_path / "o.ninfer"
    assert set_activation_policy(all_formats, out, [chosen.parameter], "AllowA8") == count


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("text/output_head", True),
        ("text/output_hea?", True),
        ("*head", True),
        ("text/[!p]*", True),
        ("TEXT/*", False),
        ("output_head", False),
        ("text", False),
        ("proposal/token_ids", False),
        ("", False),
    ],
)
def test_patterns_are_shell_patterns_over_whole_names_of_used_parameters(
    base: Artifact, tmp_path: Path, pattern: str, matches: bool
):
    out = tmp_path / "o.ninfer"
    if matches:
        assert set_activation_policy(base, out, [pattern], "AllowA8") >= 2
        return
    with pytest.raises(UsageError, match="matches no parameter"):
        set_activation_policy(base, out, [pattern], "AllowA8")
    assert not out.exists()


def test_every_pattern_must_match(base: Artifact, tmp_path: Path):
    with pytest.raises(UsageError, match=r"pattern 'vision/\*' matches no"):
        set_activation_policy(base, tmp_path / "o.ninfer", ["text/*", "vision/*"], "AllowA8")


def test_nothing_to_change_is_an_error(base: Artifact, tmp_path: Path):
    with pytest.raises(UsageError, match="AllowA4 already"):
        set_activation_policy(base, tmp_path / "o.ninfer", ["text/*"], "AllowA4")
    assert not (tmp_path / "o.ninfer").exists()


def test_a_policy_that_does_not_exist_is_an_error(base: Artifact, tmp_path: Path):
    unknown: Any = "AllowA2"
    with pytest.raises(ArtifactError, match="activation_policy is unknown") as caught:
        set_activation_policy(base, tmp_path / "o.ninfer", ["text/*"], unknown)
    assert caught.value.category == "schema"
    assert not (tmp_path / "o.ninfer").exists()


def test_an_artifact_of_several_files_may_be_edited(multipart: Artifact, tmp_path: Path):
    out = tmp_path / "o.ninfer"
    assert set_activation_policy(multipart, out, ["text/c"], "AllowA8", max_file_bytes=16384) == 1
    with open_artifact(out) as edited:
        assert len(edited.directory.files) == 4
        assert policies(edited) == dict.fromkeys(policies(multipart), "AllowA8")
        size = multipart.payload_bytes
        assert edited.read_range(0, size) == multipart.read_range(0, size)
