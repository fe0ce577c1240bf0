"""What holds for every command that makes a new artifact out of a finished one."""

from __future__ import annotations

import errno
import json
import os
import shutil
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


def part_names(entry: Path) -> set[str]:
    """Names of the continuation files of an artifact."""
    with open_artifact(entry) as artifact:
        return {file.path for file in artifact.directory.files if file.path is not None}


@pytest.mark.parametrize("name", EDITS)
def test_json_and_streams(convert_command: Convert, edits: Edits, tmp_path: Path, name: str):
    out = tmp_path / "out.ninfer"
    code, stdout, stderr = convert_command(*edits[name], "--json")
    assert code == 0, stderr
    document = json.loads(stdout)
    assert list(document)[:11] == [
        "schema",
        "ok",
        "output",
        "name",
        "artifact_id",
        "components",
        "parameters",
        "uses",
        "objects",
        "payload_bytes",
        "files",
    ]
    assert (document["schema"], document["ok"]) == ("ninfer-convert/1", True)
    assert document["output"] == str(out)
    with open_artifact(out) as artifact:
        assert document["artifact_id"] == artifact.artifact_id.hex()
        assert document["payload_bytes"] == artifact.payload_bytes
        assert document["objects"] == len(artifact.directory.objects)
        assert document["parameters"] == len(artifact.directory.bindings)
        assert document["uses"] == len(artifact.directory.uses)
    assert "\r" not in stderr
    assert "\x1b" not in stderr
    done, total = stderr.split(": 100 % (")[1].split(")")[0].split(" of ")
    assert done == total


@pytest.mark.parametrize("name", EDITS)
def test_weights_and_inputs_stay_as_they_are(
    convert_command: Convert, edits: Edits, tmp_path: Path, name: str
):
    before = present(tmp_path)
    assert convert_command(*edits[name], "--quiet") == (0, "", "")
    after = present(tmp_path)
    assert {key: after[key] for key in before} == before
    with (
        open_artifact(tmp_path / "in.ninfer") as old,
        open_artifact(tmp_path / "out.ninfer") as new,
    ):
        assert new.record("head") == old.record("head")
        assert (new.read_object("head") == old.read_object("head")).all()
        assert new.artifact_id != old.artifact_id


@pytest.mark.parametrize("name", EDITS)
def test_an_existing_output_is_replaced_whole_when_asked(
    convert_command: Convert,
    edits: Edits,
    write_model: Callable[..., Path],
    tmp_path: Path,
    name: str,
):
    write_model(tmp_path / "out.ninfer", max_file_bytes=8192)
    assert (tmp_path / "out.ninfer.part-0002").exists()
    before = present(tmp_path)
    code, _, stderr = convert_command(*edits[name])
    assert code == ExitCode.USAGE
    assert "output exists already (hint: choose another path or give --force)" in stderr
    assert "copying" not in stderr
    assert present(tmp_path) == before
    assert convert_command(*edits[name], "--force")[0] == 0
    with open_artifact(tmp_path / "out.ninfer") as artifact:
        names = {file.path or "out.ninfer" for file in artifact.directory.files}
    assert {path.name for path in tmp_path.glob("out*")} - {"out.ninfer.attach.json"} == names


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("suffix", [".conversion.json", ".attach.json"])
def test_a_report_about_the_old_output_does_not_stay_beside_the_new_one(
    convert_command: Convert,
    edits: Edits,
    write_model: Callable[..., Path],
    tmp_path: Path,
    name: str,
    suffix: str,
):
    out = write_model(tmp_path / "out.ninfer")
    report = tmp_path / f"out.ninfer{suffix}"
    report.write_text("about the old one", encoding="utf-8")
    assert convert_command(*edits[name], "--force")[0] == 0
    expected = {"out.ninfer.attach.json"} if name == "attach" else set()
    assert {path.name for path in tmp_path.glob("out.ninfer.*")} - part_names(out) == expected
    assert not report.exists() or "about the old one" not in report.read_text("utf-8")


@pytest.mark.parametrize("name", EDITS)
def test_a_report_of_an_artifact_that_is_gone_is_not_taken_over(
    convert_command: Convert, edits: Edits, tmp_path: Path, name: str
):
    report = tmp_path / "out.ninfer.conversion.json"
    report.write_text("precious", encoding="utf-8")
    before = present(tmp_path)
    code, _, stderr = convert_command(*edits[name])
    assert code == ExitCode.USAGE
    assert stderr.startswith(f"error: {report}: output exists already")
    assert present(tmp_path) == before


def test_an_existing_report_is_not_replaced(convert_command: Convert, edits: Edits, tmp_path: Path):
    report = tmp_path / "out.ninfer.attach.json"
    report.write_text("precious", encoding="utf-8")
    code, _, stderr = convert_command(*edits["attach"])
    assert code == ExitCode.USAGE
    assert stderr.startswith(f"error: {report}: output exists already")
    assert not (tmp_path / "out.ninfer").exists()
    assert convert_command(*edits["attach"], "--force")[0] == 0
    assert json.loads(report.read_text("utf-8"))["component"] == "dflash2"


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("link", [None, "symbolic", "hard"])
def test_an_input_is_never_the_output(
    convert_command: Convert,
    edits: Edits,
    tmp_path: Path,
    name: str,
    link: str | None,
):
    inputs = [tmp_path / "in.ninfer", tmp_path / "in.ninfer.part-0001"]
    inputs += [tmp_path / "donor.ninfer"] if name == "attach" else []
    for index, path in enumerate(inputs):
        out = path
        if link == "symbolic":
            out = tmp_path / f"link{index}"
            out.symlink_to(path)
        elif link == "hard":
            out = tmp_path / f"link{index}"
            os.link(path, out)
        before = present(tmp_path)
        *arguments, _ = edits[name]
        code, _, stderr = convert_command(*arguments, out, "--force")
        assert code == ExitCode.USAGE
        assert "output is the same file as input" in stderr
        assert present(tmp_path) == before


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_an_output_without_a_name_is_refused(convert_command: Convert, edits: Edits, name: str):
    *arguments, _ = edits["rename"]
    code, _, stderr = convert_command(*arguments, name)
    assert code == ExitCode.USAGE
    assert "names no file" in stderr or "folder" in stderr


@pytest.mark.parametrize("name", EDITS)
def test_a_missing_part_is_an_error_and_leaves_nothing(
    convert_command: Convert, edits: Edits, tmp_path: Path, name: str
):
    (tmp_path / "in.ninfer.part-0002").unlink()
    before = present(tmp_path)
    code, _, stderr = convert_command(*edits[name])
    assert code == ExitCode.FAILED
    assert stderr.endswith(
        f"error: {tmp_path / 'in.ninfer.part-0002'}: no such file or directory\n"
    )
    assert present(tmp_path) == before


@pytest.mark.parametrize("name", EDITS)
def test_other_versions_and_other_files_are_refused(
    convert_command: Convert, edits: Edits, tmp_path: Path, name: str
):
    (tmp_path / "in.ninfer").write_bytes(b"NINFER\0\2" + bytes(100))
    code, _, stderr = convert_command(*edits[name])
    assert code == ExitCode.INVALID_INPUT
    assert "(hint: ninfer-convert upgrade" in stderr


def test_names_may_begin_with_a_dash(convert_command: Convert, source: Path, tmp_path: Path):
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        code, _, stderr = convert_command("rename", "--name", "x", "--", source, "-o.ninfer")
    finally:
        os.chdir(here)
    assert code == 0, stderr
    assert (tmp_path / "-o.ninfer").exists()


def test_a_disk_that_is_too_small_is_refused_at_once(
    convert_command: Convert,
    edits: Edits,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    before = present(tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    code, _, stderr = convert_command(*edits["split"])
    assert code == ExitCode.CAPACITY
    assert "the disk has 100 left" in stderr
    assert present(tmp_path) == before


def test_a_name_cannot_drive_the_terminal(convert_command: Convert, source: Path, tmp_path: Path):
    out = tmp_path / "o\n\x1b[2J.ninfer"
    code, _, stderr = convert_command("rename", source, out, "--name", "x")
    assert code == 0
    assert "\x1b" not in stderr
    assert r"o\n\x1b[2J.ninfer: " in stderr.splitlines()[-1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only_is_an_error_of_the_system(
    convert_command: Convert, source: Path, tmp_path: Path
):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    code, _, stderr = convert_command("rename", source, folder / "o.ninfer", "--name", "x")
    assert code == ExitCode.FAILED
    assert "permission denied" in stderr


def test_a_part_that_is_left_of_an_old_set_is_not_replaced(
    convert_command: Convert, edits: Edits, tmp_path: Path
):
    part = tmp_path / "out.ninfer.part-0001"
    part.write_text("precious", encoding="utf-8")
    before = present(tmp_path)
    code, _, stderr = convert_command(*edits["split"])
    assert code == ExitCode.USAGE
    assert stderr.startswith(f"error: {part}: output exists already")
    assert present(tmp_path) == before


def test_a_part_of_the_output_is_never_an_input(
    convert_command: Convert, write_model: Callable[..., Path], tmp_path: Path
):
    source = write_model(tmp_path / "out.ninfer.part-0001")
    before = present(tmp_path)
    out = tmp_path / "out.ninfer"
    code, _, stderr = convert_command("split", source, out, "--max-file-bytes", "8KiB", "--force")
    assert code == ExitCode.USAGE
    assert "output is the same file as input" in stderr
    assert present(tmp_path) == before


def test_a_file_that_is_too_long_for_the_file_system_is_said_to_be(
    convert_command: Convert, edits: Edits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = present(tmp_path)

    def too_long(*arguments: object) -> int:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "pwrite", too_long)
    code, _, stderr = convert_command(*edits["rename"])
    assert code == ExitCode.CAPACITY
    assert stderr.endswith(
        f"error: {tmp_path / 'out.ninfer'}: the file system takes no file of this length "
        "(hint: give a smaller --max-file-bytes)\n"
    )
    assert present(tmp_path) == before


def test_a_disk_that_fills_while_it_is_written_leaves_nothing(
    convert_command: Convert, edits: Edits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = present(tmp_path)

    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    for name in EDITS:
        code, _, stderr = convert_command(*edits[name])
        assert code == ExitCode.CAPACITY, name
        assert "no space left on the disk" in stderr
        assert present(tmp_path) == before
