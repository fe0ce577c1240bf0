"""Artifacts that tests write tensor by tensor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ninfer_format import (
    ArtifactWriter,
    Binding,
    Component,
    TensorSpec,
    Use,
    cast_direct,
    codec_for,
    plan_artifact,
)
from ninfer_runtime.models.architecture import LogicalParameter
from ninfer_runtime.models.qwen3_5.architecture import ARCHITECTURE


class Writer:
    """Writes one object for each parameter; a test changes what it needs changed before."""

    def __init__(self, config: dict, components: Sequence[str] = ("text",)) -> None:
        configs = ARCHITECTURE.component_configs(config, components)
        self.components = {
            name: Component(config, target=None if name == "text" else "text")
            for name, config in configs.items()
        }
        parameters = ARCHITECTURE.parameters(configs)
        rng = np.random.default_rng(0)
        self.values = {each.name: self.draw(each, rng) for each in parameters}
        self.formats = {each.name: each.storage_format for each in parameters}
        self.bindings = {each.name: Binding(object=each.name) for each in parameters}
        self.uses = [Use(each.name, name, "A16Only") for each in parameters for name in each.inputs]

    @staticmethod
    def draw(parameter: LogicalParameter, rng: np.random.Generator) -> np.ndarray:
        # In 16ths, so that bf16 stores them exactly.
        return (rng.integers(-16, 17, parameter.shape) / 16).astype(np.float32)

    def write(self, path: Path) -> Path:
        specs = [
            TensorSpec(name, values.shape, self.formats[name], "contiguous_le_v1")
            for name, values in self.values.items()
        ]
        plan = plan_artifact(
            specs, components=self.components, bindings=self.bindings, uses=tuple(self.uses)
        )
        with ArtifactWriter(path, plan) as writer:
            for spec in specs:
                words = cast_direct(self.values[spec.id], spec.format)
                writer.write(
                    spec.id, 0, codec_for(spec.format, spec.layout, spec.shape).encode(words)
                )
        return path
