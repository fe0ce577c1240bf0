"""Plans without weights: from a configuration alone, or from that and an index."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ninfer_format import CheckpointError
from ninfer_quant.cli.plan_table import plan_document
from ninfer_quant.pipeline.conversion import Conversion

from .conftest import Tensors

COMPONENTS = ("text", "vision", "mtp")


@pytest.fixture
def config_only(checkpoint: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "config"
    folder.mkdir()
    shutil.copy(checkpoint / "config.json", folder)
    return folder


def write_index(folder: Path, names: list[str]) -> None:
    weight_map = dict.fromkeys(names, "model-00001-of-00001.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8")


def test_the_plan_of_a_configuration_is_that_of_the_model(
    plan: Callable[..., Conversion], config_only: Path
):
    expected = plan_document(plan("qwen3_8_27b", components=COMPONENTS))
    found = plan_document(
        plan("qwen3_8_27b", model=config_only, components=COMPONENTS, needs_weights=False)
    )
    assert found["assignments"] == expected["assignments"]
    assert found["tensors"] == expected["tensors"]
    assert any("tokenizer.json" in warning for warning in found["warnings"])


def test_an_index_says_which_tensors_are_missing(
    plan: Callable[..., Conversion], config_only: Path, tensors: Tensors
):
    names = list(tensors)
    write_index(config_only, names)
    options = {"model": config_only, "components": COMPONENTS, "needs_weights": False}
    plan("qwen3_8_27b", **options)
    write_index(config_only, [name for name in names if name != "mtp.fc.weight"])
    with pytest.raises(CheckpointError) as caught:
        plan("qwen3_8_27b", **options)
    assert caught.value.tensors == ("mtp.fc.weight",)


def test_without_weights_nothing_is_converted(
    plan: Callable[..., Conversion],
    tmp_path: Path,
    model_folder: Callable[..., Path],
    tensors: Tensors,
):
    folder = model_folder(tmp_path / "model", None)
    with pytest.raises(CheckpointError) as caught:
        plan("qwen3_8_27b", model=folder)
    text = {name for name in tensors if not name.startswith(("mtp.", "model.visual."))}
    assert set(caught.value.tensors) == text


def test_a_damaged_index_is_refused(plan: Callable[..., Conversion], config_only: Path):
    (config_only / "model.safetensors.index.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match="does not hold JSON"):
        plan("qwen3_8_27b", model=config_only, needs_weights=False)
