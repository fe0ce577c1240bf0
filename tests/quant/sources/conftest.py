"""Quantized copies of the tiny model, made here without the code that reads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from tests.runtime.models.sequences import Sequence

from ninfer_format import Artifact, SafetensorsCheckpoint, TensorRecord, open_artifact
from ninfer_quant.pipeline.conversion import Conversion, ConversionRequest, plan_conversion
from ninfer_quant.pipeline.run import RunOptions, run_conversion
from ninfer_quant.recipes.loading import load_recipe
from ninfer_runtime.device import get_device
from ninfer_runtime.models.registry import load_model

TEXT = "model.language_model."
PROMPT = np.array([17, 300, 5, 2041, 9, 1200, 33])
Tensors = dict[str, np.ndarray]

_DTYPE_NAMES = {
    "bfloat16": "BF16",
    "float32": "F32",
    "float16": "F16",
    "float8_e4m3fn": "F8_E4M3",
    "uint8": "U8",
    "int16": "I16",
}


class Nvfp4(NamedTuple):
    """A matrix in nvfp4.

    Attributes:
        packed: Codes, two in a byte, the even column in the low half: uint8 [N, K / 2].
        scales: Block scales, float8_e4m3fn [N, K / 16].
        divisor: Global divisor.
    """

    packed: np.ndarray
    scales: np.ndarray
    divisor: np.float32

    @property
    def codes(self) -> np.ndarray:
        pairs = np.stack([self.packed & 15, self.packed >> 4], axis=2)
        return pairs.reshape(self.packed.shape[0], -1)

    @property
    def values(self) -> np.ndarray:
        magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
        signs = np.where(self.codes & 8, np.float32(-1), np.float32(1))
        scales = np.repeat(self.scales.astype(np.float32), 16, axis=1)
        values: np.ndarray = signs * magnitudes[self.codes & 7] * scales / self.divisor
        return values


def tensor_record(artifact: Artifact, object_id: str) -> TensorRecord:
    record = artifact.record(object_id)
    assert isinstance(record, TensorRecord)
    return record


def to_nvfp4(values: np.ndarray, divisor: float | None = None) -> Nvfp4:
    """Quantize a matrix [N, K] as the definition says, with NumPy's casts."""
    values = values.astype(np.float32)
    chosen = np.float32(6 * 448 / np.abs(values).max() if divisor is None else divisor)
    blocks = (values * chosen).reshape(values.shape[0], -1, 16)
    scales = (np.abs(blocks).max(axis=2) / 6).clip(0, 448).astype(ml_dtypes.float8_e4m3fn)
    safe = np.where(scales == 0, 1, scales.astype(np.float32))
    codes = (blocks / safe[:, :, np.newaxis]).clip(-6, 6).astype(ml_dtypes.float4_e2m1fn)
    nibbles = codes.view(np.uint8).reshape(values.shape) & 15
    return Nvfp4(nibbles[:, ::2] | nibbles[:, 1::2] << 4, scales, chosen)


@pytest.fixture(scope="session")
def tensors(checkpoint: Path) -> Tensors:
    """All tensors of the tiny checkpoint; read only."""
    source = SafetensorsCheckpoint(checkpoint)
    return {name: source.read(name).reshape(source.info(name).shape) for name in source.names}


@pytest.fixture(scope="session")
def write_weights() -> Callable[[Path, Mapping[str, np.ndarray]], Path]:
    """Write tensors as ``model.safetensors`` in a folder, which is made; returns the folder."""

    def write(folder: Path, content: Mapping[str, np.ndarray]) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        header, end = {}, 0
        for name, array in content.items():
            header[name] = {
                "dtype": _DTYPE_NAMES[array.dtype.name],
                "shape": list(array.shape),
                "data_offsets": [end, end + array.nbytes],
            }
            end += array.nbytes
        text = json.dumps(header).encode()
        data = b"".join(np.ascontiguousarray(array).tobytes() for array in content.values())
        path = folder / "model.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        return folder

    return write


@pytest.fixture(scope="session")
def model_folder(
    checkpoint: Path, write_weights: Callable[[Path, Mapping[str, np.ndarray]], Path]
) -> Callable[..., Path]:
    """A folder like the tiny checkpoint's with other weights; None for no weights at all."""

    def make(folder: Path, content: Mapping[str, np.ndarray] | None) -> Path:
        folder.mkdir(parents=True)
        for file in checkpoint.iterdir():
            if file.name != "model.safetensors":
                shutil.copy(file, folder)
        return folder if content is None else write_weights(folder, content)

    return make


@pytest.fixture
def plan(checkpoint: Path, tmp_path: Path) -> Callable[..., Conversion]:
    """Plan a conversion by a recipe given as Python text."""

    def run(
        recipe: str,
        sources: Mapping[str, Path] | None = None,
        *,
        model: Path = checkpoint,
        components: tuple[str, ...] = ("text",),
        needs_weights: bool = True,
    ) -> Conversion:
        if recipe.isidentifier():
            loaded = load_recipe(recipe)
        else:
            path = tmp_path / "recipe.py"
            path.write_text(recipe, encoding="utf-8")
            loaded = load_recipe(str(path))
        request = ConversionRequest(
            model=model,
            recipe=loaded,
            components=components,
            sources={name: str(path) for name, path in (sources or {}).items()},
        )
        return plan_conversion(request, needs_weights=needs_weights)

    return run


@pytest.fixture
def convert_with(plan: Callable[..., Conversion], tmp_path: Path) -> Callable[..., Path]:
    """Convert by a recipe given as Python text, verifying everything; returns the artifact."""

    def run(recipe: str, sources: Mapping[str, Path] | None = None, **options: object) -> Path:
        output = tmp_path / f"out{len(list(tmp_path.glob('out*.ninfer')))}.ninfer"
        conversion = plan(recipe, sources, **options)
        run_conversion(conversion, RunOptions(output, verify="full"), lambda num_bytes, item: None)
        return output

    return run


@pytest.fixture(scope="session")
def logits() -> Callable[[Path], np.ndarray]:
    """Run the text model of an artifact on the CPU over a short prompt: float32 [T, V]."""

    def run(path: Path) -> np.ndarray:
        with open_artifact(path) as artifact:
            model = load_model(artifact, get_device("cpu"))
            return Sequence(model, PROMPT.size).logits(PROMPT)

    return run


DEQUANTIZED = """
import numpy as np
from ninfer_quant.sources.logical import ArraySource
def configure(model, recipe, sources):
    values = np.load({file!r})
    for name in values.files:
        source = ArraySource(values[name].reshape(model.parameters[name].shape), name)
        recipe.assign(name.replace("|", "/"), source=source, format="fp32", method="cast_direct")
"""


@pytest.fixture
def reference_logits(
    convert_with: Callable[..., Path], logits: Callable[[Path], np.ndarray], tmp_path: Path
) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """Logits of the tiny model with given fp32 values of some parameters."""

    def run(values: Mapping[str, np.ndarray]) -> np.ndarray:
        file = tmp_path / "values.npz"
        renamed: dict[str, Any] = {name.replace("/", "|"): values[name] for name in values}
        np.savez(file, **renamed)
        recipe = DEQUANTIZED.format(file=str(file)).replace(
            "model.parameters[name]", 'model.parameters[name.replace("|", "/")]'
        )
        return logits(convert_with(recipe))

    return run
