"""Checkpoints by Hub id: what is one, what is loaded, and what is said when that fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import (
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)

from ninfer_format.errors import ExitCode
from ninfer_quant.errors import DownloadError
from ninfer_quant.pipeline.conversion import (
    ConversionRequest,
    default_name,
    plan_conversion,
    source_name,
)
from ninfer_quant.pipeline.run import RunOptions, run_conversion
from ninfer_quant.recipes.loading import load_recipe
from ninfer_quant.sources.hub import download, is_hub_id
from ninfer_quant.sources.open import locate


@pytest.mark.parametrize("text", ["Qwen/Qwen3.8-27B", "a/b@main", "a/b@1d4bf0f2", "a-b/c_d@x/y"])
def test_ids_of_the_hub(text: str):
    assert is_hub_id(text)


@pytest.mark.parametrize(
    "text", ["model", "./a/b", "/a/b", "a/b/c", "a/b.gguf", "a/b.ninfer", "a/b.safetensors", "a/"]
)
def test_what_is_no_id_is_a_path(text: str):
    assert not is_hub_id(text)
    assert locate(text) == Path(text)


def test_what_exists_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen" / "Qwen3.8-27B").mkdir(parents=True)
    assert not is_hub_id("Qwen/Qwen3.8-27B")


@pytest.mark.parametrize("with_weights", [True, False])
def test_a_revision_is_loaded_without_weights_for_a_plan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, with_weights: bool
):
    calls: list[tuple[Any, ...]] = []

    def snapshot(repository: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        calls.append((repository, revision, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert locate("org/name@v2", with_weights=with_weights) == tmp_path
    ((repository, revision, patterns),) = calls
    assert (repository, revision) == ("org/name", "v2")
    assert "*.json" in patterns
    assert ("*.safetensors" in patterns) == with_weights


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (OfflineModeIsEnabled("offline mode is enabled"), "no connection"),
        (LocalEntryNotFoundError("cannot find it"), "no connection"),
        (HFValidationError("bad\nid"), "check the connection"),
    ],
)
def test_a_failure_is_one_line_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, error: Exception, hint: str
):
    def fail(*arguments: object, **options: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(DownloadError, match="org/name is no path") as caught:
        download("org/name")
    assert caught.value.exit_code == ExitCode.FAILED
    assert "\n" not in str(caught.value)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_offline_the_command_says_so_and_exits_1(tmp_path: Path):
    code = "from ninfer_quant.cli.convert import main; main()"
    command = [sys.executable, "-c", code, "build", "--plan"]
    result = subprocess.run(
        [*command, "--model", "org/name", "--recipe", "qwen3_8_27b"],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert result.returncode == ExitCode.FAILED, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert "org/name is no path, and cannot be loaded from the Hub" in line
    assert "no connection to the Hub" in line


def test_a_snapshot_is_called_by_its_id_and_commit(tmp_path: Path):
    snapshot = tmp_path / "models--Qwen--Qwen3.8-27B" / "snapshots" / "1d4bf0f2"
    snapshot.mkdir(parents=True)
    assert source_name(snapshot) == "Qwen/Qwen3.8-27B@1d4bf0f2"
    assert default_name(snapshot, {}) == "Qwen3.8-27B"
    for folder in (tmp_path / "x" / ".." / "model@2", tmp_path / "model@2"):
        assert source_name(folder) == default_name(folder, {}) == "model@2"


def test_a_model_of_the_hub_is_reported_by_its_id(checkpoint: Path, tmp_path: Path):
    snapshot = tmp_path / "models--org--tiny" / "snapshots" / "abc"
    shutil.copytree(checkpoint, snapshot)
    request = ConversionRequest(model=snapshot, recipe=load_recipe("qwen3_8_27b"))
    report = run_conversion(
        plan_conversion(request), RunOptions(tmp_path / "x.ninfer"), lambda num_bytes, item: None
    )
    assert report["sources"]["base"]["path"] == "org/tiny@abc"
    assert report["provenance"]["sources"]["base"]["name"] == "org/tiny@abc"
    assert report["name"] == "tiny"
