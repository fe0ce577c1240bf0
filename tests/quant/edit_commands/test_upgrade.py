"""``ninfer-convert upgrade``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ninfer_format import open_artifact
from ninfer_format.errors import ExitCode

LEGACY = Path(__file__).parents[2] / "data" / "conformance" / "artifacts" / "legacy"

Convert = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((LEGACY / "tiny_v3.expected.json").read_text("utf-8"))
    return document


@pytest.fixture
def table(tmp_path: Path, expected: dict[str, Any]) -> Path:
    path = tmp_path / "table.json"
    members = {key: expected["directory"][key] for key in ("components", "bindings", "uses")}
    path.write_text(json.dumps(members), encoding="utf-8")
    return path


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_becomes_that_of_the_reference(
    convert_command: Convert, table: Path, tmp_path: Path, expected: dict[str, Any], version: int
):
    out = tmp_path / "mit Leerzeichen ü.ninfer"
    options = ["--table", table, "--chat-template", LEGACY / "tiny_new_template.jinja"]
    code, stdout, stderr = convert_command(
        "upgrade", LEGACY / f"tiny_v{version}.ninfer", out, *options
    )
    assert (code, stdout) == (0, ""), stderr
    first, *_, last = stderr.splitlines()
    assert first.startswith("upgrading: 0 %")
    assert "upgrading: 100 % (4.79 KiB of 4.79 KiB)" in stderr
    assert last == f"wrote {out}: 5.03 KiB in 14 objects"
    with open_artifact(out) as artifact:
        found = artifact.directory.to_json()
        for section in ("components", "objects", "bindings", "uses", "files", "metadata"):
            assert found[section] == expected["directory"][section], section
        assert found["provenance"]["upgraded_from"]["version"] == version
    data = out.read_bytes()
    reference = (LEGACY / "tiny_v3.ninfer").read_bytes()
    assert data[expected["entry_payload_start"] :] == reference[expected["entry_payload_start"] :]


def test_json_is_one_document(convert_command: Convert, table: Path, tmp_path: Path):
    out = tmp_path / "o.ninfer"
    code, stdout, _ = convert_command(
        "upgrade", LEGACY / "tiny_v2.ninfer", out, "--table", table, "--json"
    )
    assert code == 0
    document = json.loads(stdout)
    with open_artifact(out) as artifact:
        assert document == {
            "schema": "ninfer-convert/1",
            "ok": True,
            "output": str(out),
            "name": "tiny",
            "artifact_id": artifact.artifact_id.hex(),
            "components": ["text", "vision"],
            "parameters": 9,
            "uses": 5,
            "objects": 14,
            "payload_bytes": 4868,
            "files": [{"path": "o.ninfer", "payload_bytes": 4868}],
            "upgraded_from_version": 2,
        }


def test_a_limit_cuts_the_result(convert_command: Convert, table: Path, tmp_path: Path):
    out = tmp_path / "o.ninfer"
    options = ["--table", table, "--max-file-bytes", "12KiB"]
    assert convert_command("upgrade", LEGACY / "tiny_v2.ninfer", out, *options)[0] == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["o.ninfer", "o.ninfer.part-0001", "table.json"]


def test_without_a_table_only_published_models_are_known(convert_command: Convert, tmp_path: Path):
    source = LEGACY / "tiny_v2.ninfer"
    code, stdout, stderr = convert_command("upgrade", source, tmp_path / "o.ninfer", "--json")
    assert code == ExitCode.INVALID_INPUT
    assert stderr.startswith(f"error: {source}: no published model (expected one of qwen3.6-27b/")
    assert "found tiny/groupwise-int) (hint: describe its components" in stderr
    error = json.loads(stdout)["error"]
    assert error["code"] == "artifact_schema"
    assert error["path"] == str(source)
    assert list(tmp_path.iterdir()) == []


def test_version_3_needs_no_upgrade(convert_command: Convert, tmp_path: Path):
    code, _, stderr = convert_command("upgrade", LEGACY / "tiny_v3.ninfer", tmp_path / "o.ninfer")
    assert code == ExitCode.INVALID_INPUT
    assert "container version is 3 already" in stderr


def test_errors_of_the_table_name_its_file(convert_command: Convert, tmp_path: Path):
    (tmp_path / "t.json").write_text('{"components": {}}', encoding="utf-8")
    code, _, stderr = convert_command(
        "upgrade", LEGACY / "tiny_v2.ninfer", tmp_path / "o.ninfer", "--table", tmp_path / "t.json"
    )
    assert code == ExitCode.INVALID_INPUT
    assert stderr == f"error: {tmp_path / 't.json'}: table lacks member 'bindings', 'uses'\n"
    code, _, stderr = convert_command(
        "upgrade", LEGACY / "tiny_v2.ninfer", tmp_path / "o.ninfer", "--table", tmp_path / "none"
    )
    assert code == ExitCode.FAILED
    assert stderr == f"error: {tmp_path / 'none'}: no such file or directory\n"


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (b"{% for %}", ExitCode.INVALID_INPUT, "t.jinja: "),
        (b"\xff", ExitCode.INVALID_INPUT, "is not UTF-8"),
        (b"", ExitCode.INVALID_INPUT, "resource file is empty"),
        (None, ExitCode.USAGE, "no such resource file"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_before_anything_is_written(
    convert_command: Convert,
    table: Path,
    tmp_path: Path,
    content: bytes | None,
    code: int,
    message: str,
):
    template = tmp_path / "t.jinja"
    if content is not None:
        template.write_bytes(content)
    options = ["--table", table, "--chat-template", template]
    found, _, stderr = convert_command(
        "upgrade", LEGACY / "tiny_v2.ninfer", tmp_path / "o.ninfer", *options
    )
    assert found == code
    (line,) = stderr.splitlines()
    assert message in line
    assert not (tmp_path / "o.ninfer").exists()


@pytest.mark.parametrize("kind", ["the same path", "a symbolic link", "a hard link", "the table"])
def test_an_input_is_never_the_output(
    convert_command: Convert, table: Path, tmp_path: Path, kind: str
):
    source, out = tmp_path / "in.ninfer", tmp_path / "out.ninfer"
    source.write_bytes((LEGACY / "tiny_v2.ninfer").read_bytes())
    before = source.read_bytes()
    if kind == "the same path":
        out = source
    elif kind == "a symbolic link":
        out.symlink_to(source)
    elif kind == "a hard link":
        os.link(source, out)
    else:
        out = table
    code, _, stderr = convert_command("upgrade", source, out, "--table", table, "--force")
    assert code == ExitCode.USAGE
    assert "output is the same file as input" in stderr
    assert source.read_bytes() == before


def test_an_existing_output_is_replaced_only_when_asked(
    convert_command: Convert, table: Path, tmp_path: Path
):
    out = tmp_path / "o.ninfer"
    out.write_text("precious", encoding="utf-8")
    arguments = ["upgrade", LEGACY / "tiny_v2.ninfer", out, "--table", table]
    code, _, stderr = convert_command(*arguments)
    assert code == ExitCode.USAGE
    assert "output exists already (hint: choose another path or give --force)" in stderr
    assert out.read_text("utf-8") == "precious"
    assert convert_command(*arguments, "--force")[0] == 0
    with open_artifact(out) as artifact:
        assert artifact.name == "tiny"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.ninfer", "table.json"]


def test_a_damaged_file_leaves_nothing(convert_command: Convert, table: Path, tmp_path: Path):
    data = bytearray((LEGACY / "tiny_v2.ninfer").read_bytes())
    data[-4:] = bytes(4)  # The activation scalar becomes zero.
    source = tmp_path / "in.ninfer"
    source.write_bytes(data)
    code, _, stderr = convert_command("upgrade", source, tmp_path / "o.ninfer", "--table", table)
    assert code == ExitCode.INVALID_INPUT
    assert "activation scalar has an illegal value" in stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.ninfer", "table.json"]
