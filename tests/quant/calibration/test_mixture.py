"""Calibrating a mixture of experts, and using the calibration."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ninfer_format import open_artifact
from ninfer_quant.calibration.corpus_rows import read_corpus
from ninfer_quant.calibration.expert_pools import Coverage, fill_in_experts
from ninfer_quant.calibration.input_sums import InputSums
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


# --- experts with few tokens -------------------------------------------------------------------


def pool_of(rows: dict[int, np.ndarray], K: int) -> tuple[dict[str, InputSums], dict[str, int]]:
    """The sums of four experts, of which some saw rows ``[T, K]``."""
    sums = {}
    for expert, values in rows.items():
        sums[f"text/layers/0/moe/experts/{expert}/product"] = InputSums(K, keeps_hessian=True)
        sums[f"text/layers/0/moe/experts/{expert}/product"].add(values)
    expected = {f"text/layers/0/moe/experts/{expert}/product": K for expert in range(4)}
    return sums, expected | {"text/layers/0/ffn_input": 8}


def moments(rows: np.ndarray) -> np.ndarray:
    product: np.ndarray = rows.T.astype(np.float64) @ rows / len(rows)
    return product


def hessian_of(sums: InputSums) -> np.ndarray:
    hessian = sums.statistics().hessian
    assert hessian is not None
    return hessian


def test_an_expert_without_tokens_is_as_the_others_together():
    K = 64
    generator = np.random.default_rng(5)
    rows = {
        expert: generator.standard_normal((20 * (expert + 1), K)).astype(np.float32)
        for expert in (0, 2, 3)
    }
    sums, expected = pool_of(rows, K)
    coverage = fill_in_experts(sums, expected, keeps_hessian=True)
    assert coverage == Coverage(4, experts_without_tokens=1, experts_with_few_tokens=0)
    everyone = np.concatenate(list(rows.values()))
    found = sums["text/layers/0/moe/experts/1/product"].statistics()
    assert found.amax == np.abs(everyone).max()
    np.testing.assert_allclose(
        hessian_of(sums["text/layers/0/moe/experts/1/product"]), moments(everyone), atol=1e-5
    )
    untouched = sums["text/layers/0/moe/experts/0/product"]
    np.testing.assert_allclose(hessian_of(untouched), moments(rows[0]), atol=1e-5)
    assert "text/layers/0/ffn_input" not in sums


def test_few_tokens_count_beside_an_eighth_of_the_width_of_average_ones():
    K = 64
    generator = np.random.default_rng(6)
    own = generator.standard_normal((2, K)).astype(np.float32)
    rest = generator.standard_normal((50, K)).astype(np.float32) * np.float32(3)
    sums, expected = pool_of({0: own, 1: rest, 2: rest, 3: rest}, K)
    coverage = fill_in_experts(sums, expected, keeps_hessian=True)
    assert coverage == Coverage(4, experts_without_tokens=0, experts_with_few_tokens=1)
    everyone = moments(np.concatenate([own, rest, rest, rest]))
    found = hessian_of(sums["text/layers/0/moe/experts/0/product"])
    np.testing.assert_allclose(found, (2 * moments(own) + 8 * everyone) / 10, atol=1e-4)


def test_a_corpus_that_reaches_few_experts_is_told_and_does_for_gptq(
    tiny_moe: Path, tmp_path: Path
):
    corpus = tmp_path / "one.txt"
    corpus.write_text("A", encoding="utf-8")
    calibration = tmp_path / "c.safetensors"
    line = ["calibrate", str(tiny_moe), "--corpus", str(corpus), "--cols", "64"]
    line += ["--out", str(calibration)]
    result = CliRunner().invoke(command, line)
    assert result.exit_code == 0, result.output
    with open_model(tiny_moe) as model:
        experts = sum("/moe/experts/" in name for name in model.inputs)
    file = CalibrationFile(calibration)
    without = int(file.metadata["experts_without_tokens"])
    few = int(file.metadata["experts_with_few_tokens"])
    assert without > 0
    assert f"of {experts} experts {without} saw no token and {few} too few" in result.stderr
    assert sum("/moe/experts/" in name for name in file.inputs) == experts
    out = tmp_path / "out.ninfer"
    line = ["groupwise", str(tiny_moe), str(out), "--format", "q4_g64_fp16", "--method", "gptq"]
    line += ["--calibration", str(calibration), "--select", "text/layers/*/moe/experts/*/down"]
    result = CliRunner().invoke(command, [*line, "-q", "--device", "cpu"])
    assert result.exit_code == 0, result.output
