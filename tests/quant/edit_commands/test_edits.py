"""What each of the editing commands does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ninfer_format import (
    open_artifact,
)
from ninfer_format.errors import ExitCode

Convert = Callable[..., tuple[int, str, str]]
Edits = dict[str, list[object]]

TOKENIZER = b'{"tokens": []}'
EDITS = ["policy", "template", "resource", "rename", "split", "attach"]


def present(folder: Path) -> dict[str, bytes]:
    """All files of a folder with their contents."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_policy(convert_command: Convert, edits: Edits, tmp_path: Path):
    code, stdout, stderr = convert_command(*edits["policy"], "--json")
    assert code == 0, stderr
    assert json.loads(stdout)["uses_changed"] == 1
    with open_artifact(tmp_path / "out.ninfer") as artifact:
        assert [use.activation_policy for use in artifact.directory.uses] == ["AllowA8"]


def test_policy_takes_several_patterns(convert_command: Convert, donor: Path, tmp_path: Path):
    out = tmp_path / "out.ninfer"
    patterns = ["--parameter", "text/*", "--parameter", "dflash2/*"]
    code, _, stderr = convert_command("policy", donor, out, *patterns, "--policy", "AllowA4")
    assert code == 0
    assert "uses changed: 3" in stderr
    code, _, stderr = convert_command(
        "policy",
        donor,
        tmp_path / "2.ninfer",
        *patterns,
        "--parameter",
        "x/*",
        "--policy",
        "AllowA4",
    )
    assert code == ExitCode.USAGE
    assert stderr == f"error: {donor}: pattern 'x/*' matches no parameter with a use\n"


def test_policies_are_spelled_exactly(convert_command: Convert, source: Path, tmp_path: Path):
    code, _, stderr = convert_command(
        "policy", source, tmp_path / "o", "--parameter", "*", "--policy", "allowa8"
    )
    assert code == ExitCode.USAGE
    assert "AllowA8" in stderr


def test_template(convert_command: Convert, edits: Edits, tmp_path: Path):
    code, stdout, stderr = convert_command(*edits["template"], "--json")
    assert code == 0, stderr
    document = json.loads(stdout)
    assert document["resource"] == "text/chat_template.jinja"
    assert document["resource_bytes"] == len("{{ messages[0] }}")
    with open_artifact(tmp_path / "out.ninfer") as artifact:
        assert artifact.resource("text", "chat_template.jinja") == b"{{ messages[0] }}"


def test_resource(convert_command: Convert, edits: Edits, tmp_path: Path):
    code, _, stderr = convert_command(*edits["resource"])
    assert code == 0, stderr
    with open_artifact(tmp_path / "out.ninfer") as artifact:
        assert artifact.resource("text", "generation_config.json") == b'{"a": 1}'


@pytest.mark.parametrize(
    ("role", "content", "code", "message"),
    [
        ("chat_template.jinja", b"{% for %}", 3, "new: "),
        ("text/chat_template.jinja", b"{{", 3, "new: "),
        ("tokenizer.json", b"[]", 3, "must be a JSON object"),
        ("tokenizer.json", b"{,}", 3, "is not JSON"),
        ("tokenizer.json", b"", 3, "resource file is empty"),
        ("tokenizer.json", TOKENIZER, 2, "has these bytes already"),
        ("tokeniser.json", b"{}", 3, "did you mean tokenizer.json?"),
    ],
)
def test_a_resource_that_cannot_be_used_is_refused(
    convert_command: Convert,
    source: Path,
    tmp_path: Path,
    role: str,
    content: bytes,
    code: int,
    message: str,
):
    (tmp_path / "new").write_bytes(content)
    before = present(tmp_path)
    options = ["--role", role, "--file", tmp_path / "new"]
    found, _, stderr = convert_command("resource", source, tmp_path / "o.ninfer", *options)
    assert found == code
    (line,) = stderr.splitlines()
    assert message in line
    assert present(tmp_path) == before


def test_rename(convert_command: Convert, edits: Edits, tmp_path: Path):
    code, stdout, stderr = convert_command(*edits["rename"], "--json")
    assert code == 0, stderr
    assert json.loads(stdout)["name"] == "neuer Name ü"
    with open_artifact(tmp_path / "out.ninfer") as artifact:
        assert artifact.name == "neuer Name ü"
    assert convert_command("rename", tmp_path / "in.ninfer", tmp_path / "o", "--name", "")[0] == 2


def test_split(convert_command: Convert, edits: Edits, tmp_path: Path):
    code, stdout, stderr = convert_command(*edits["split"], "--json")
    assert code == 0, stderr
    names = ["out.ninfer", "out.ninfer.part-0001"]
    assert [item["path"] for item in json.loads(stdout)["files"]] == names
    assert sorted(path.name for path in tmp_path.glob("out*")) == names


def test_a_limit_that_is_too_small_is_a_usage_error(
    convert_command: Convert, source: Path, tmp_path: Path
):
    code, _, stderr = convert_command(
        "split", source, tmp_path / "o.ninfer", "--max-file-bytes", "4KiB"
    )
    assert code == ExitCode.USAGE
    assert stderr == (
        "error: --max-file-bytes 4096 is too small: header and directory leave no room "
        "(hint: give at least 8192)\n"
    )


def test_attach(convert_command: Convert, edits: Edits, tmp_path: Path):
    code, stdout, stderr = convert_command(*edits["attach"], "--json")
    assert code == 0, stderr
    document = json.loads(stdout)
    out = tmp_path / "out.ninfer"
    assert document["component"] == "dflash2"
    assert document["components"] == ["text", "dflash2"]
    assert document["report"] == f"{out}.attach.json"
    report = json.loads(Path(document["report"]).read_text("utf-8"))
    with open_artifact(out) as artifact:
        assert report["output"] == {
            "file": "out.ninfer",
            "artifact_id": artifact.artifact_id.hex(),
        }
        assert [item["id"] for item in report["objects"]] == [
            record.id for record in artifact.directory.objects
        ]
        data = artifact.read_object("import/dflash2/draft")
        assert data.tobytes() == bytes(range(256)) * 32


def test_what_does_not_fit_is_not_attached(
    convert_command: Convert, source: Path, donor: Path, tmp_path: Path
):
    before = present(tmp_path)
    code, _, stderr = convert_command(
        "attach", donor, source, tmp_path / "o.ninfer", "--component", "dflash2"
    )
    assert code == ExitCode.INVALID_INPUT
    assert stderr == f"error: {donor}: has component 'dflash2' already\n"
    assert present(tmp_path) == before
