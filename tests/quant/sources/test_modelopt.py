"""Checkpoints of ModelOpt: multipliers become divisors, float8 becomes values or words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ninfer_format import CheckpointError, Fp8RowWords, open_artifact
from ninfer_quant.errors import RecipeError
from ninfer_quant.pipeline.conversion import Conversion

from .conftest import TEXT, Tensors, to_nvfp4

DOWN_PROJ = f"{TEXT}layers.3.mlp.down_proj"
DOWN = "text/layers/3/mlp/down"

IMPORT = """
def configure(model, recipe, sources):
    source = model.parameters["{name}"].source
    assert source.encoded.format == "{format}"
    recipe.assign("{name}", format="{format}", method="import_encoded", activation_policy="{policy}")
"""
DIRECT = "def configure(model, recipe, sources):\n    pass\n"


@pytest.fixture
def with_down_proj(
    tensors: Tensors, model_folder: Callable[..., Path], tmp_path: Path
) -> Callable[[Tensors], Path]:
    """The tiny model with other tensors in place of one matrix."""

    def make(replacement: Tensors) -> Path:
        others = {name: array for name, array in tensors.items() if not name.startswith(DOWN_PROJ)}
        return model_folder(tmp_path / "model", others | replacement)

    return make


def nvfp4_tensors(weight: np.ndarray, multiplier: float) -> tuple[Tensors, np.ndarray]:
    """The four tensors of a matrix, and its codes."""
    matrix = to_nvfp4(weight, float(np.float32(1) / np.float32(multiplier)))
    content = {
        f"{DOWN_PROJ}.weight": matrix.packed,
        f"{DOWN_PROJ}.weight_scale": matrix.scales,
        f"{DOWN_PROJ}.weight_scale_2": np.array(multiplier, np.float32),
        f"{DOWN_PROJ}.input_scale": np.array(0.07, np.float32),
    }
    return content, matrix.codes


def test_nvfp4_of_the_model_itself_is_imported_with_reciprocal_scales(
    with_down_proj: Callable[[Tensors], Path],
    tensors: Tensors,
    convert_with: Callable[..., Path],
    logits: Callable[[Path], np.ndarray],
    reference_logits: Callable[..., np.ndarray],
):
    weight = tensors[f"{DOWN_PROJ}.weight"]
    content, codes = nvfp4_tensors(weight, 0.00031)
    recipe = IMPORT.format(name=DOWN, format="nvfp4", policy="AllowA4")
    path = convert_with(recipe, model=with_down_proj(content))
    with open_artifact(path) as artifact:
        words = artifact.words(artifact.parts(DOWN)[0].object)
        np.testing.assert_array_equal(words.codes, codes)
        divisor = np.float32(1) / np.float32(0.00031)
        np.testing.assert_array_equal(words.divisors.view(np.float32), [divisor])
        (use,) = (use for use in artifact.directory.uses if use.parameter == DOWN)
        object_id = use.auxiliaries["activation_input_divisor"].object
        assert object_id is not None
        stored = artifact.decode_object(object_id)
        assert stored.reshape(()) == np.float32(1) / np.float32(0.07)
    values = to_nvfp4(weight, float(divisor)).values
    np.testing.assert_allclose(logits(path), reference_logits({DOWN: values}), rtol=0, atol=1e-4)


def test_a_divisor_under_the_name_of_a_multiplier_is_refused(
    with_down_proj: Callable[[Tensors], Path], tensors: Tensors, plan: Callable[..., Conversion]
):
    content, _ = nvfp4_tensors(tensors[f"{DOWN_PROJ}.weight"], 0.00031)
    content[f"{DOWN_PROJ}.weight_scale_2"] = np.array(4000.0, np.float32)
    recipe = IMPORT.format(name=DOWN, format="nvfp4", policy="A16Only")
    with pytest.raises(RecipeError, match="a multiplier by its name"):
        plan(recipe, model=with_down_proj(content))


@pytest.mark.parametrize("part", ["weight_scale", "weight_scale_2"])
def test_a_scale_that_is_absent_is_named(
    with_down_proj: Callable[[Tensors], Path],
    tensors: Tensors,
    plan: Callable[..., Conversion],
    part: str,
):
    content, _ = nvfp4_tensors(tensors[f"{DOWN_PROJ}.weight"], 0.00031)
    del content[f"{DOWN_PROJ}.{part}"]
    with pytest.raises(CheckpointError) as caught:
        plan(DIRECT, model=with_down_proj(content))
    assert f"{DOWN_PROJ}.{part}" in caught.value.tensors


def test_nvfp4_decodes_to_values_for_other_methods(
    with_down_proj: Callable[[Tensors], Path], tensors: Tensors, convert_with: Callable[..., Path]
):
    content, _ = nvfp4_tensors(tensors[f"{DOWN_PROJ}.weight"], 0.00031)
    path = convert_with(DIRECT, model=with_down_proj(content))
    matrix = to_nvfp4(tensors[f"{DOWN_PROJ}.weight"], float(np.float32(1) / np.float32(0.00031)))
    with open_artifact(path) as artifact:
        np.testing.assert_array_equal(
            artifact.decode_parameter(DOWN, matrix.values.shape),
            matrix.values.astype(ml_dtypes.bfloat16).astype(np.float32),
        )


@pytest.mark.parametrize(("multiplier", "is_exact"), [(0.00390625, True), (0.0041, False)])
def test_one_scale_for_a_float8_matrix(
    with_down_proj: Callable[[Tensors], Path],
    tensors: Tensors,
    plan: Callable[..., Conversion],
    multiplier: float,
    is_exact: bool,
):
    scale = np.array(multiplier, np.float32)
    codes = (tensors[f"{DOWN_PROJ}.weight"].astype(np.float32) / scale).astype(
        ml_dtypes.float8_e4m3fn
    )
    folder = with_down_proj({f"{DOWN_PROJ}.weight": codes, f"{DOWN_PROJ}.weight_scale": scale})
    source = plan(DIRECT, model=folder).model.parameters[DOWN].source
    np.testing.assert_array_equal(
        source.read_values(300, 5000), (codes.astype(np.float32) * scale).reshape(-1)[300:5000]
    )
    assert (source.encoded is not None) == is_exact
    if source.encoded is not None:
        words = source.encoded.read_rows(3, 9)
        assert isinstance(words, Fp8RowWords)
        np.testing.assert_array_equal(words.codes, codes[3:9].view(np.uint8))
        np.testing.assert_array_equal(words.scales.view(ml_dtypes.bfloat16), [multiplier] * 6)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32])
def test_float8_with_a_scale_per_tile(
    with_down_proj: Callable[[Tensors], Path],
    tensors: Tensors,
    plan: Callable[..., Conversion],
    dtype: type,
):
    rng = np.random.default_rng(0)
    scales: np.ndarray = rng.uniform(0.001, 0.01, (2, 6)).astype(dtype)
    spread = np.kron(scales.astype(np.float32), np.ones((128, 128), np.float32))
    weight = tensors[f"{DOWN_PROJ}.weight"].astype(np.float32)
    codes = (weight / spread).astype(ml_dtypes.float8_e4m3fn)
    folder = with_down_proj({f"{DOWN_PROJ}.weight": codes, f"{DOWN_PROJ}.weight_scale_inv": scales})
    source = plan(DIRECT, model=folder).model.parameters[DOWN].source
    assert source.encoded is None
    np.testing.assert_array_equal(
        source.read_values(77, 190_000), (codes.astype(np.float32) * spread).reshape(-1)[77:190_000]
    )
