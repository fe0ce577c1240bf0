"""Calibrating a mixture of experts, and using the calibration."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ninfer_format import open_artifact
from ninfer_quant.calibration.corpus_rows import read_corpus
from ninfer_quant.calibration.job import CalibrationOptions, calibrate
from ninfer_quant.calibration.model import open_model
from ninfer_quant.calibration.records import CalibrationFile
from ninfer_quant.cli.quant import command


@pytest.fixture(scope="module")
def calibration(tiny_moe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("moe") / "c.safetensors"
    with open_model(tiny_moe) as model:
        corpus = read_corpus(None, model.frontend, rows=4, cols=96)
        calibrate(model, corpus, CalibrationOptions(path), lambda steps, item: None)
    return path


def test_every_expert_has_a_record_of_its_own_product(calibration: Path):
    inputs = CalibrationFile(calibration).inputs
    assert "text/layers/0/ffn_input" in inputs
    assert "text/layers/0/moe/shared/product" in inputs
    experts = [name for name in inputs if name.startswith("text/layers/0/moe/experts/")]
    assert len(experts) > 1
    file = CalibrationFile(calibration)
    assert len({float(file.amax(name)) for name in experts}) == len(experts)


@pytest.mark.parametrize("from_artifact", [False, True])
def test_experts_with_inputs_of_their_own_are_not_packed(
    tiny_moe: Path, calibration: Path, tmp_path: Path, from_artifact: bool
):
    source = tiny_moe
    if from_artifact:
        source = tmp_path / "q8.ninfer"
        line = ["groupwise", str(tiny_moe), str(source), "--format", "q8_g32_fp16", "-q"]
        assert CliRunner().invoke(command, [*line, "--device", "cpu"]).exit_code == 0
    out = tmp_path / "out.ninfer"
    line = ["groupwise", str(source), str(out), "--format", "q4_g64_fp16", "--method", "gptq"]
    line += ["--calibration", str(calibration), "--select", "text/layers/0/moe/experts/*"]
    result = CliRunner().invoke(command, [*line, "-q", "--verify", "full", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    with open_artifact(out) as artifact:
        objects = {name: artifact.parts(name)[0].object for name in artifact.directory.bindings}
    prefix = "text/layers/0/moe/experts/"
    assert objects[f"{prefix}0/down"] != objects[f"{prefix}1/down"]
    assert objects[f"{prefix}0/gate"] == objects[f"{prefix}1/up"]
    report = json.loads((tmp_path / "out.ninfer.conversion.json").read_text())
    methods = {item["method"] for item in report["methods"] if prefix in item["parameters"][0]}
    assert methods == {"grouped_gptq"}
    errors = [
        item["relative_frobenius"]
        for item in report["statistics"]
        if item["parameter"].startswith(prefix)
    ]
    assert 0.02 < np.mean(errors) < 0.4
