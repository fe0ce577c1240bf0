"""Fake models, small checkpoints and one real conversion, shared by the converter's tests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import Component
from ninfer_quant.pipeline.conversion import ConversionRequest, plan_conversion
from ninfer_quant.pipeline.run import RunOptions, run_conversion
from ninfer_quant.recipes.loading import load_recipe
from ninfer_quant.recipes.model import Model, Parameter
from ninfer_quant.sources.logical import ArraySource

DATA = Path(__file__).resolve().parent.parent / "data"
ARTIFACT_ID = bytes(range(16))
COMPONENTS = ("text", "vision", "mtp")

Convert = Callable[..., Path]
WriteSafetensors = Callable[[Path, Mapping[str, np.ndarray]], None]

_DTYPE_NAMES = {
    "bfloat16": "BF16",
    "float32": "F32",
    "float16": "F16",
    "float8_e4m3fn": "F8_E4M3",
    "int64": "I64",
    "int8": "I8",
}


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The tiny trained checkpoint; read only."""
    return DATA / "tiny-model" / "checkpoint"


@pytest.fixture
def checkpoint_copy(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint that a test may change."""
    return Path(shutil.copytree(checkpoint, tmp_path / "checkpoint"))


@pytest.fixture(scope="session")
def convert(checkpoint: Path) -> Convert:
    """Convert a checkpoint (the tiny one unless said otherwise) and return the artifact's path."""

    def run(
        output: Path,
        recipe: str = "qwen3_8_27b",
        *,
        model: Path = checkpoint,
        components: tuple[str, ...] = COMPONENTS,
        rows_per_chunk: int = 512,
        max_file_bytes: int = 32_000_000_000,
        overrides: tuple[str, ...] = (),
        **options: Any,
    ) -> Path:
        request = ConversionRequest(
            model=model,
            recipe=load_recipe(recipe),
            overrides=tuple(load_recipe(override) for override in overrides),
            components=components,
            rows_per_chunk=rows_per_chunk,
            max_file_bytes=max_file_bytes,
        )
        run_options = replace(RunOptions(output, artifact_id=ARTIFACT_ID), **options)
        run_conversion(plan_conversion(request), run_options, lambda num_bytes, item: None)
        return output

    return run


@pytest.fixture(scope="session")
def quantized(convert: Convert, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model by recipe qwen3_8_27b; text, vision and mtp."""
    return convert(tmp_path_factory.mktemp("quantized") / "tiny.ninfer", verify="full")


@pytest.fixture(scope="session")
def direct(convert: Convert, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model by recipe qwen3_8_27b_bf16; text, vision and mtp."""
    return convert(tmp_path_factory.mktemp("direct") / "tiny.ninfer", "qwen3_8_27b_bf16")


@pytest.fixture(scope="session")
def write_safetensors() -> WriteSafetensors:
    """Write arrays as one Safetensors file."""

    def write(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
        header: dict[str, object] = {}
        end = 0
        for name, array in tensors.items():
            header[name] = {
                "dtype": _DTYPE_NAMES[array.dtype.name],
                "shape": list(array.shape),
                "data_offsets": [end, end + array.nbytes],
            }
            end += array.nbytes
        text = json.dumps(header).encode()
        data = b"".join(array.tobytes() for array in tensors.values())
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)

    return write


@pytest.fixture(scope="session")
def fake_model() -> Callable[..., Model]:
    """Make a model from shapes: ``fake_model({"text/a": (4, 64)}, inputs={...}, groups=[...])``.

    The values of every parameter are drawn from its name, so they differ between parameters.
    """

    def make(
        shapes: Mapping[str, tuple[int, ...]],
        *,
        inputs: Mapping[str, tuple[str, ...]] | None = None,
        groups: tuple[tuple[str, ...], ...] = (),
        formats: Mapping[str, str] | None = None,
    ) -> Model:
        parameters = []
        for index, (name, shape) in enumerate(shapes.items()):
            values = np.random.default_rng(index).standard_normal(shape).astype(np.float32)
            parameters.append(
                Parameter(
                    name,
                    shape,
                    ArraySource(np.asarray(values), name),
                    (inputs or {}).get(name, ()),
                    (formats or {}).get(name, "bf16"),
                )
            )
        components = {parameter.residency: Component({}) for parameter in parameters}
        return Model({"text": Component({}), **components}, parameters, groups)

    return make
