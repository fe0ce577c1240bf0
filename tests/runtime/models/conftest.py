"""The tiny model, read straight from its checkpoint: no converter and no artifact in between."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ninfer_format import SafetensorsCheckpoint
from ninfer_runtime.device import get_device
from ninfer_runtime.models.architecture import LogicalParameter, SourceView
from ninfer_runtime.models.parameter_source import ParameterSource
from ninfer_runtime.models.qwen3_5.architecture import ARCHITECTURE
from ninfer_runtime.models.qwen3_5.component_config import parse_text
from ninfer_runtime.models.qwen3_5.config import ModelConfig
from ninfer_runtime.models.qwen3_5.model import TextModel
from ninfer_runtime.models.qwen3_5.parameters import parameters
from ninfer_runtime.models.qwen3_5.weights import build_text_model
from ninfer_runtime.weights.host import HostWeights

TINY_MODEL = Path(__file__).parents[2] / "data" / "tiny-model"


class CheckpointParameters:
    """A `ParameterSource` over a checkpoint."""

    def __init__(self, checkpoint: SafetensorsCheckpoint, views: dict[str, SourceView]) -> None:
        self.checkpoint = checkpoint
        self.views = views

    def read(self, parameter: LogicalParameter) -> np.ndarray:
        view = self.views[parameter.name]
        values = self.checkpoint.read(view.tensor).astype(np.float32).reshape(view.tensor_shape)
        if view.rows is not None:
            rows = values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values
            values = np.concatenate([rows[begin:end] for begin, end in view.rows])
        if view.axes is not None:
            values = values.transpose(view.axes)
        return np.ascontiguousarray(values.reshape(parameter.shape))

    def is_shared(self, name: str, other: str) -> bool:
        return self.views[name] == self.views[other]


def text_model(config: dict, source: ParameterSource) -> TextModel:
    """The model of a text configuration on the CPU."""
    parsed = parse_text(config)
    store = HostWeights(parameters(ModelConfig(parsed)), source, get_device("cpu"))
    return build_text_model(parsed, store)


@pytest.fixture(scope="session")
def tiny_checkpoint() -> SafetensorsCheckpoint:
    return SafetensorsCheckpoint(TINY_MODEL / "checkpoint")


@pytest.fixture
def checkpoint_config() -> dict:
    """A fresh copy of the tiny model's config.json, for a test to change."""
    config: dict = json.loads((TINY_MODEL / "checkpoint" / "config.json").read_text())
    return config


@pytest.fixture(scope="session")
def tiny_model(tiny_checkpoint: SafetensorsCheckpoint) -> TextModel:
    configs = ARCHITECTURE.component_configs(tiny_checkpoint.config, ["text"])
    views = ARCHITECTURE.source_views(configs, tiny_checkpoint.names)
    source = CheckpointParameters(tiny_checkpoint, views)
    return text_model(configs["text"], source)


@pytest.fixture(scope="session")
def goldens() -> Path:
    return TINY_MODEL / "goldens"
