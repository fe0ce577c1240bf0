"""Models of packed weights compute what models of the same weights in float32 compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ninfer_format import open_artifact
from ninfer_quant.pipeline.conversion import ConversionRequest, plan_conversion
from ninfer_quant.pipeline.run import RunOptions, run_conversion
from ninfer_quant.recipes.loading import load_recipe
from ninfer_runtime import builtin_model
from ninfer_runtime.device import get_device
from ninfer_runtime.kv.formats import kv_formats
from ninfer_runtime.models.parameter_source import ArtifactParameters
from ninfer_runtime.models.qwen3_5.component_config import parse_text
from ninfer_runtime.models.qwen3_5.config import ModelConfig
from ninfer_runtime.models.qwen3_5.model import TextModel
from ninfer_runtime.models.qwen3_5.parameters import parameters
from ninfer_runtime.models.qwen3_5.weights import build_text_model
from ninfer_runtime.models.step import Place, text_step
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.weights.host import HostWeights
from ninfer_runtime.weights.packed import PackedWeights

TINY_MODEL = Path(__file__).parents[2] / "data" / "tiny-model" / "checkpoint"
IDS = np.array([5, 9, 100, 7, 3, 44, 2])
LARGEST_DIFFERENCE = 2e-4
"""Of logits of up to 20: float32 sums of other orders, over a few layers. A misplaced row is off by
as much as the logits are large."""


@pytest.fixture(params=["builtin", "qwen3_8_27b_bf16", "qwen3_x_nvfp4_local", "qwen3_6_35b_a3b"])
def artifact_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "builtin":
        return builtin_model.path()
    is_mixture = request.param == "qwen3_6_35b_a3b"
    conversion = ConversionRequest(
        model=request.getfixturevalue("tiny_moe") if is_mixture else TINY_MODEL,
        recipe=load_recipe(request.param),
        components=("text",),
        name="tiny",
    )
    path = tmp_path / "tiny.ninfer"
    run_conversion(plan_conversion(conversion), RunOptions(path), lambda num_bytes, item: None)
    return path


def both_models(path: Path) -> tuple[TextModel, TextModel]:
    device = get_device("cpu")
    with open_artifact(path) as artifact:
        components = artifact.directory.components
        config = parse_text(components["text"].config, with_mtp="mtp" in components)
        wanted = parameters(ModelConfig(config))
        host = HostWeights(wanted, ArtifactParameters(artifact, wanted), device)
        with PackedWeights(artifact, wanted, device) as packed:
            return build_text_model(config, host), build_text_model(config, packed)


def logits(model: TextModel) -> np.ndarray:
    kv_format = next(iter(kv_formats("cpu").values()))
    state = model.new_state(num_pages=1, num_slots=1, ring=16, kv_format=kv_format)
    step = text_step(model.device, [IDS], [Place((0,))])
    return model.device.to_host(model.logits(model.forward(step, state)))


def test_logits_are_those_of_float32_weights(artifact_path: Path):
    host, packed = both_models(artifact_path)
    assert isinstance(packed.head.weight, PackedWeight)
    expected = logits(host)
    assert np.std(expected) > 0.1
    assert np.abs(logits(packed) - expected).max() < LARGEST_DIFFERENCE
    assert packed.weight_bytes < host.weight_bytes
