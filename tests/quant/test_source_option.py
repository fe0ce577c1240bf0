"""The options --source, --proposal and --ranking of ``ninfer-convert build``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from ninfer_format.errors import NInferError, UsageError
from ninfer_quant.cli.build import build

IMPORTING = """
def configure(model, recipe, sources):
    source = model.source("text/final_norm", sources["other"])
    recipe.assign("text/final_norm", source=source)
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "importing.py"
    path.write_text(IMPORTING, encoding="utf-8")
    return path


@pytest.fixture
def call(checkpoint: Path) -> Callable[..., Result]:
    """Run build on the tiny checkpoint without the outer error handling."""

    def run(*arguments: object, model: object = checkpoint) -> Result:
        options = ["--model", model, *arguments]
        return CliRunner().invoke(build, list(map(str, options)), catch_exceptions=True)

    return run


def test_a_source_is_planned_and_recorded(
    call: Callable[..., Result], checkpoint: Path, recipe: Path, tmp_path: Path
):
    output = tmp_path / "out.ninfer"
    arguments = ["--recipe", recipe, "--source", f"other={checkpoint}", "--out", output, "--json"]
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out.ninfer.conversion.json").read_text("utf-8"))
    assert report["sources"]["other"]["path"] == str(checkpoint)
    assert report["provenance"]["sources"]["other"]["name"] == "checkpoint"
    assert set(report["sources"]["other"]["files"]) == {"config.json", "model.safetensors"}
    (method,) = (m for m in report["methods"] if m["parameters"] == ["text/final_norm"])
    assert method["sources"] == ["model.language_model.norm.weight"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("other", "not NAME=PATH"),
        ("=x", "not NAME=PATH"),
        ("other=", "not NAME=PATH"),
        ("base=x", "name of --model"),
    ],
)
def test_a_source_that_is_no_source_is_refused(
    call: Callable[..., Result], recipe: Path, value: str, message: str
):
    result = call("--recipe", recipe, "--source", value, "--plan")
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)


def test_a_source_is_given_once(call: Callable[..., Result], recipe: Path):
    result = call("--recipe", recipe, "--source", "a=x", "--source", "a=y", "--plan")
    assert isinstance(result.exception, UsageError)
    assert "twice" in str(result.exception)


def test_a_source_is_opened_only_if_a_recipe_asks_for_it(
    call: Callable[..., Result], recipe: Path, checkpoint: Path
):
    missing = "other=/nowhere/at/all"
    unused = call("--recipe", "qwen3_8_27b", "--source", missing, "--plan", "--json")
    assert unused.exit_code == 0
    document: dict[str, Any] = json.loads(unused.stdout)
    assert document["warnings"] == ["sources that no recipe has asked for: other"]
    used = call("--recipe", recipe, "--source", missing, "--plan")
    assert isinstance(used.exception, NInferError)
    assert "--source other: no such file or folder" in str(used.exception)
    assert used.exception.exit_code == 3


def test_an_output_that_is_a_source_is_refused(
    call: Callable[..., Result], recipe: Path, quantized: Path, tmp_path: Path
):
    copy = tmp_path / "copy.ninfer"
    copy.write_bytes(quantized.read_bytes())
    arguments = ["--recipe", recipe, "--source", f"other={copy}", "--out", copy, "--force"]
    result = call(*arguments)
    assert isinstance(result.exception, UsageError)
    assert copy.read_bytes() == quantized.read_bytes()


def test_a_proposal_head_is_planned(call: Callable[..., Result], tmp_path: Path):
    ranking = tmp_path / "counts.bin"
    ranking.write_bytes(np.arange(4096).astype("<i8").tobytes())
    options = ["--recipe", "qwen3_8_27b", "--components", "text,mtp", "--plan", "--json"]
    result = call(*options, "--proposal", "--proposal-rows", 512, "--ranking", ranking)
    rows = json.loads(result.stdout)["assignments"]
    shapes = {row["parameter"]: row["shape"] for row in rows}
    assert shapes["proposal/head"] == [512, 256]
    assert shapes["proposal/token_ids"] == [512]


def test_a_ranking_without_a_proposal_is_refused(call: Callable[..., Result], tmp_path: Path):
    result = call("--recipe", "qwen3_8_27b", "--plan", "--ranking", tmp_path / "x")
    assert isinstance(result.exception, UsageError)


def test_the_default_number_of_rows_is_refused_for_a_small_vocabulary(
    call: Callable[..., Result],
):
    result = call("--recipe", "qwen3_8_27b", "--plan", "--proposal")
    assert isinstance(result.exception, UsageError)
    assert "--proposal-rows 131072" in str(result.exception)
