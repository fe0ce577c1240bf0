"""``--verify``, ``--diff`` and ``--memory`` as the user sees them."""

from __future__ import annotations

import json
import math
import shutil
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from ninfer_format import codec_of, memory_estimate, open_artifact
from ninfer_format.verification.conversion_report import report_path


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 0x80
    path.write_bytes(content)


# --- verify ------------------------------------------------------------------------------------


def test_a_clean_artifact(inspect: Any, document: Any, builtin: Path) -> None:
    code, out, err = inspect(builtin, "--verify")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "checked: structure, every word of 174 objects (9.70 MiB)",
        f"checked: SHA-256 of 174 objects and the directory, with {report_path(builtin).name}",
        "no problems found",
    ]
    found = document(builtin, "--verify")
    assert list(found) == [
        "schema",
        "ok",
        "path",
        "artifact_id",
        "checked",
        "notes",
        "problems",
    ]
    assert found["checked"] == {
        "objects": 174,
        "skipped_objects": 0,
        "payload_bytes": 10174953,
        "report": report_path(builtin).name,
        "object_hashes": 174,
        "file_hashes": 0,
        "directory_hash": True,
    }
    assert (found["notes"], found["problems"]) == ([], [])


def test_problems_are_listed_and_exit_with_1(
    inspect: Any, document: Any, builtin: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "m.ninfer"
    shutil.copy(builtin, copy)
    shutil.copy(report_path(builtin), report_path(copy))
    flip_last_byte(copy)
    code, out, err = inspect(copy, "--verify")
    assert code == 1
    assert err == f"error: {copy}: 1 problem found\n"
    lines = out.splitlines()
    assert "no problems found" not in lines
    assert lines[-2].split() == ["category", "offset", "object", "or", "file", "problem"]
    assert lines[-1].split()[0] == "hash"
    found = document(copy, "--verify", code=1)
    assert list(found)[:3] == ["schema", "ok", "error"]
    assert found["ok"] is False
    assert found["error"] == {
        "code": "verification",
        "message": f"{copy}: 1 problem found",
        "path": str(copy),
    }
    (problem,) = found["problems"]
    assert list(problem) == ["category", "object", "file", "offset", "message"]
    assert problem["category"] == "hash"
    assert lines[-1].split()[2] == problem["object"]


@pytest.mark.parametrize("bit", [0, 15])
def test_a_flipped_bit_in_a_q8_scale_names_the_object(
    bit: int, inspect: Any, builtin: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "m.ninfer"
    shutil.copy(report_path(builtin), report_path(copy))
    content = bytearray(builtin.read_bytes())
    with open_artifact(builtin) as artifact:
        record = next(r for r in artifact.directory.tensors if r.format == "q8_g32_fp16")
        scale = codec_of(record).geometry.planes["scale"]
        start = len(content) - artifact.payload_bytes + record.offset + scale.offset
    content[start + bit // 8] ^= 1 << bit % 8
    copy.write_bytes(content)
    code, out, _ = inspect(copy, "--verify")
    assert code == 1
    assert record.id in out


def test_several_problems(inspect: Any, conformance: Path) -> None:
    path = conformance / "artifacts/tolerated/partial_distribution.ninfer"
    code, out, err = inspect(path, "--verify")
    assert code == 1
    assert "could not be read" in out
    assert "no such file or directory" in out
    assert err.startswith(f"error: {path}: ")


# --- diff --------------------------------------------------------------------------------------


def test_equal_artifacts(inspect: Any, document: Any, builtin: Path, tmp_path: Path) -> None:
    copy = tmp_path / "m.ninfer"
    shutil.copy(builtin, copy)
    assert inspect(builtin, "--diff", copy) == (
        0,
        "equal: directory and 9.70 MiB of objects\n",
        "",
    )
    found = document(builtin, "--diff", copy)
    assert list(found) == [
        "schema",
        "ok",
        "path",
        "other",
        "equal",
        "compared_bytes",
        "differences",
    ]
    assert (found["equal"], found["differences"]) == (True, [])


def test_different_artifacts_exit_with_1_and_are_no_failure(
    inspect: Any, document: Any, all_formats: Path, builtin: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "m.ninfer"
    shutil.copy(builtin, copy)
    flip_last_byte(copy)
    code, out, err = inspect(builtin, "--diff", copy)
    assert (code, err) == (1, "")
    (line,) = out.splitlines()[1:]
    assert line.startswith("~  objects")
    assert "1 of" in line
    _, out, _ = inspect(all_formats, "--diff", builtin, "--json")
    found = json.loads(out)
    assert found["ok"] is True
    assert found["equal"] is False
    assert list(found["differences"][0]) == ["section", "change", "name", "detail"]
    assert {d["section"] for d in found["differences"]} == {
        "components",
        "objects",
        "bindings",
        "uses",
        "metadata",
        "provenance",
    }
    signs = {
        line.split()[0] for line in inspect(all_formats, "--diff", builtin)[1].splitlines()[1:]
    }
    assert signs == {"+", "-", "~"}


# --- memory ------------------------------------------------------------------------------------


def test_the_estimate_of_the_installed_engine(inspect: Any, document: Any, builtin: Path) -> None:
    found = document(builtin, "--memory", "--max-context", "4096", "--slots", "3")
    assert list(found) == [
        "schema",
        "ok",
        "path",
        "device",
        "max_context",
        "slots",
        "kv_dtype",
        "items",
        "total_bytes",
        "loading_bytes",
        "available_bytes",
        "notes",
    ]
    assert (found["max_context"], found["slots"]) == (4096, 3)
    assert all(list(item) == ["component", "purpose", "bytes", "detail"] for item in found["items"])
    assert found["total_bytes"] == sum(item["bytes"] or 0 for item in found["items"])
    out = inspect(builtin, "--memory")[1]
    assert "not loaded by this engine" in out
    assert "total " in out


def test_without_an_engine_there_is_no_estimate(
    inspect: Any, builtin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_estimate, "entry_points", lambda group: [])
    code, out, err = inspect(builtin, "--memory")
    assert (code, out) == (5, "")
    assert "install ninfer-runtime" in err


def test_the_engine_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("x", "math:sqrt", memory_estimate.ENTRY_POINT_GROUP)
    monkeypatch.setattr(memory_estimate, "entry_points", lambda group: [entry])
    found: object = memory_estimate.find_estimator()
    assert found is math.sqrt


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["--max-context", "40000"], 2, "32768"),
        (["--kv-dtype", "int4"], 2, "kv_dtype 'int4' is not one of"),
    ],
)
def test_what_the_engine_cannot_do(
    arguments: list[str], exit_code: int, message: str, inspect: Any, builtin: Path
) -> None:
    code, out, err = inspect(builtin, "--memory", *arguments)
    assert (code, out) == (exit_code, "")
    assert message in err


def test_an_artifact_without_a_model(inspect: Any, conformance: Path) -> None:
    code, out, _ = inspect(conformance / "artifacts/minimal/minimal.ninfer", "--memory")
    assert (code, out) == (5, "")
