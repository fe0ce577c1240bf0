from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from ninfer_format import open_artifact
from ninfer_format.verification.conversion_report import read_report
from ninfer_runtime import builtin_model

TOOL = Path(__file__).resolve().parents[2] / "tools" / "build_builtin_model.py"


def test_the_shipped_model_is_what_the_converter_makes():
    result = subprocess.run(
        [sys.executable, str(TOOL), "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_shipped_model_has_every_component_and_its_hashes_beside_it():
    path = builtin_model.path()
    with open_artifact(path) as artifact:
        assert artifact.name == "tiny-qwen3_5"
        assert set(artifact.directory.components) == {"text", "vision", "mtp"}
        assert artifact.directory.provenance["recipe"] == {"name": "qwen3_8_27b"}
        objects = {record.id for record in artifact.directory.objects}
        artifact_id = artifact.artifact_id.hex()
    report = read_report(path)
    assert report is not None
    assert report.artifact_id == artifact_id
    assert report.objects.keys() == objects
    assert report.directory is not None
    assert str(TOOL.parents[1]) not in report.path.read_text("utf-8")


def test_an_outdated_model_is_an_error_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    tool = runpy.run_path(str(TOOL))
    monkeypatch.setattr(sys, "argv", [str(TOOL), "--check"])
    monkeypatch.setitem(tool["main"].__globals__, "check", lambda: False)
    assert tool["main"]() == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: tiny-qwen3_5.ninfer is out of date")
