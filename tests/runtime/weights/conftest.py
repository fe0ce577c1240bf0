"""Artifacts of random tensors, and the devices that they are loaded to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.stored_weights import random_stored

from ninfer_format import (
    Artifact,
    ArtifactWriter,
    Binding,
    Component,
    Part,
    TensorSpec,
    Use,
    open_artifact,
    plan_artifact,
)
from ninfer_runtime.device import Device, get_device
from ninfer_runtime.models.architecture import LogicalParameter

Stored = tuple[str, tuple[int, ...]] | tuple[str, tuple[int, ...], int]
"""Format, shape and divisors of an object."""


class Sketch:
    """An artifact in the making: objects of random words, and parameters bound to their elements."""

    def __init__(self, path: Path, objects: Mapping[str, Stored], rng: np.random.Generator) -> None:
        self.path = path
        self.objects = {name: random_stored(rng, *stored) for name, stored in objects.items()}
        self.parameters: list[LogicalParameter] = []
        self.bindings: dict[str, Binding] = {}

    def bind(self, name: str, shape: Sequence[int], *parts: tuple[str, int, int]) -> None:
        """Bind a parameter; a name that begins with ``text/m`` is a matrix that is multiplied."""
        inputs = ("text/input",) if name.startswith("text/m") else ()
        self.parameters.append(LogicalParameter(name, tuple(shape), inputs))
        self.bindings[name] = Binding(parts=tuple(Part(*part) for part in parts))

    def bind_rows(self, name: str, parent: str, begin: int, end: int) -> None:
        """Bind a matrix to rows of an object."""
        width = self.objects[parent][0].shape[1]
        self.bind(name, (end - begin, width), (parent, begin * width, end * width))

    def write(self) -> Path:
        """Write it, the first time."""
        if self.path.exists():
            return self.path
        plan = plan_artifact(
            [
                TensorSpec(name, codec.shape, codec.format, codec.layout, codec.divisors)
                for name, (codec, _) in self.objects.items()
            ],
            components={"text": Component({})},
            bindings=self.bindings,
            uses=[Use(p.name, use, "A16Only") for p in self.parameters for use in p.inputs],
        )
        with ArtifactWriter(self.path, plan) as writer:
            for name, (_, payload) in self.objects.items():
                writer.write(name, 0, payload)
        return self.path


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(31)


@pytest.fixture
def sketch(tmp_path: Path, rng: np.random.Generator) -> Callable[[Mapping[str, Stored]], Sketch]:
    """Begin an artifact with some objects."""
    return lambda objects: Sketch(tmp_path / "model.ninfer", objects, rng)


@pytest.fixture
def opened() -> Iterator[Callable[[Sketch], Artifact]]:
    """Write and open an artifact."""
    with ExitStack() as stack:
        yield lambda sketch: stack.enter_context(open_artifact(sketch.write()))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "cuda":
        gpu: Device = request.getfixturevalue("gpu")
        return gpu
    return get_device("cpu")


@pytest.fixture
def host_array(device: Device) -> Callable[[Any], np.ndarray]:
    """An array of the device on the host."""
    return lambda array: getattr(device, "download", np.asarray)(array)
