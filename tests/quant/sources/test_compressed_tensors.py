"""Checkpoints of compressed-tensors: words come through unchanged and mean what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ninfer_format import Artifact, CheckpointError, open_artifact
from ninfer_format.errors import ExitCode
from ninfer_quant.errors import ConversionError, RecipeError
from ninfer_quant.pipeline.conversion import Conversion

from .conftest import TEXT, Nvfp4, Tensors, tensor_record, to_nvfp4

LAYER = f"{TEXT}layers.3."
Q_HEADS, HEAD = 2, 256

IMPORT = """
def configure(model, recipe, sources):
    for name in recipe.match({names}):
        source = model.source(name, sources["quantized"], {format!r})
        recipe.assign(name, source=source, format={format!r}, method="import_encoded",
                      activation_policy={policy!r})
"""


def importing(names: str, format: str, policy: str = "A16Only", more: str = "") -> str:
    return IMPORT.format(names=names, format=format, policy=policy) + more


def add_nvfp4(target: Tensors, module: str, matrix: Nvfp4, input_divisor: float = 10.0) -> None:
    target[f"{module}.weight_packed"] = matrix.packed
    target[f"{module}.weight_scale"] = matrix.scales
    target[f"{module}.weight_global_scale"] = np.array([matrix.divisor])
    target[f"{module}.input_global_scale"] = np.array([input_divisor], np.float32)


def query_rows(begin: int) -> np.ndarray:
    """Rows of q_proj that are those of the query (0) or of its gate (1)."""
    heads = [np.arange(HEAD) + (2 * head + begin) * HEAD for head in range(Q_HEADS)]
    return np.concatenate(heads)


def stored(artifact: Artifact, name: str) -> tuple[str, np.ndarray, np.ndarray, np.ndarray]:
    """Format, codes, scales and divisors of a parameter that is rows of one object."""
    (part,) = artifact.parts(name)
    words = artifact.words(part.object)
    record = tensor_record(artifact, part.object)
    rows = slice(part.begin // record.shape[1], part.end // record.shape[1])
    return record.format, words.codes[rows], words.scales[rows], words.divisors


@pytest.fixture
def attention(tensors: Tensors) -> dict[str, Nvfp4]:
    """The attention of layer 3 with one divisor, as quantizers fuse it."""
    return {
        role: to_nvfp4(tensors[f"{LAYER}self_attn.{role}_proj.weight"], 4000.0)
        for role in ("q", "k", "v")
    }


def test_nvfp4_words_are_copied_and_run(
    attention: dict[str, Nvfp4],
    tensors: Tensors,
    write_weights: Callable[..., Path],
    convert_with: Callable[..., Path],
    logits: Callable[[Path], np.ndarray],
    reference_logits: Callable[..., np.ndarray],
    tmp_path: Path,
):
    down = to_nvfp4(tensors[f"{LAYER}mlp.down_proj.weight"])
    content: Tensors = {}
    for (role, matrix), divisor in zip(attention.items(), (12.0, 10.5, 11.0), strict=True):
        add_nvfp4(content, f"{LAYER}self_attn.{role}_proj", matrix, divisor)
    add_nvfp4(content, f"{LAYER}mlp.down_proj", down, 77.0)
    quantized = write_weights(tmp_path / "quantized", content)
    names = (
        '["text/layers/3/attention/query", "text/layers/3/attention/key", '
        '"text/layers/3/attention/gate", "text/layers/3/attention/value", '
        '"text/layers/3/mlp/down"]'
    )
    path = convert_with(importing(names, "nvfp4", "AllowA4"), {"quantized": quantized})
    expected = {
        "attention/query": (attention["q"], query_rows(0)),
        "attention/gate": (attention["q"], query_rows(1)),
        "attention/key": (attention["k"], np.arange(256)),
        "attention/value": (attention["v"], np.arange(256)),
        "mlp/down": (down, np.arange(256)),
    }
    values = {}
    with open_artifact(path) as artifact:
        for role, (matrix, rows) in expected.items():
            name = f"text/layers/3/{role}"
            format_, codes, scales, divisors = stored(artifact, name)
            assert format_ == "nvfp4"
            np.testing.assert_array_equal(codes, matrix.codes[rows])
            np.testing.assert_array_equal(scales, matrix.scales[rows].view(np.uint8))
            np.testing.assert_array_equal(divisors.view(np.float32), [matrix.divisor])
            values[name] = matrix.values[rows]
        parent = artifact.parts("text/layers/3/attention/query")[0].object
        assert tensor_record(artifact, parent).shape == (1536, 256)
        assert activation_divisors(artifact) == {
            **{
                f"text/layers/3/attention/{role}": 10.5
                for role in ("query", "key", "gate", "value")
            },
            "text/layers/3/mlp/down": 77.0,
        }
    np.testing.assert_allclose(logits(path), reference_logits(values), rtol=0, atol=1e-4)


def activation_divisors(artifact: Artifact) -> dict[str, float]:
    return {
        use.parameter: float(artifact.decode_object(str(binding.object)).reshape(()))
        for use in artifact.directory.uses
        for role, binding in use.auxiliaries.items()
        if role == "activation_input_divisor" and use.activation_policy == "AllowA4"
    }


def test_fp8_rows_are_copied_and_run(
    tensors: Tensors,
    write_weights: Callable[..., Path],
    convert_with: Callable[..., Path],
    logits: Callable[[Path], np.ndarray],
    reference_logits: Callable[..., np.ndarray],
    tmp_path: Path,
):
    content: Tensors = {}
    values: Tensors = {}
    expected: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for role in ("gate", "up"):
        weight = tensors[f"{LAYER}mlp.{role}_proj.weight"].astype(np.float32)
        scale = (np.abs(weight).max(axis=1, keepdims=True) / 448).astype(ml_dtypes.bfloat16)
        codes = (weight / scale.astype(np.float32)).clip(-448, 448)
        content[f"{LAYER}mlp.{role}_proj.weight"] = codes.astype(ml_dtypes.float8_e4m3fn)
        content[f"{LAYER}mlp.{role}_proj.weight_scale"] = scale
        expected[role] = content[f"{LAYER}mlp.{role}_proj.weight"], scale
        values[f"text/layers/3/mlp/{role}"] = expected[role][0].astype(np.float32) * scale.astype(
            np.float32
        )
    quantized = write_weights(tmp_path / "quantized", content)
    recipe = importing(
        '["text/layers/3/mlp/gate", "text/layers/3/mlp/up"]', "fp8_e4m3fn_row_bf16", "AllowA8"
    )
    path = convert_with(recipe, {"quantized": quantized})
    with open_artifact(path) as artifact:
        (part,) = artifact.parts("text/layers/3/mlp/gate")
        words = artifact.words(part.object)
        codes = np.concatenate([expected[role][0] for role in ("gate", "up")])
        scales = np.concatenate([expected[role][1] for role in ("gate", "up")])
        np.testing.assert_array_equal(words.codes, codes.view(np.uint8))
        np.testing.assert_array_equal(words.scales, scales.reshape(-1).view(np.uint16))
    np.testing.assert_allclose(logits(path), reference_logits(values), rtol=0, atol=1e-4)


# --- stacks --------------------------------------------------------------------------------


@pytest.fixture
def gate_up(
    tensors: Tensors, write_weights: Callable[..., Path], tmp_path: Path
) -> tuple[Path, list[Nvfp4]]:
    """Gate and up of layer 3 with divisors of their own."""
    content: Tensors = {}
    matrices = [
        to_nvfp4(tensors[f"{LAYER}mlp.{role}_proj.weight"], divisor)
        for role, divisor in (("gate", 3000.0), ("up", 5000.0))
    ]
    for role, matrix, divisor in zip(("gate", "up"), matrices, (20.0, 30.0), strict=True):
        add_nvfp4(content, f"{LAYER}mlp.{role}_proj", matrix, divisor)
    return write_weights(tmp_path / "quantized", content), matrices


MLP = '["text/layers/3/mlp/gate", "text/layers/3/mlp/up"]'


def test_matrices_with_different_divisors_are_not_packed_unasked(
    gate_up: tuple[Path, list[Nvfp4]], plan: Callable[..., Conversion]
):
    conversion = plan(importing(MLP, "nvfp4"), {"quantized": gate_up[0]})
    weights = [item for item in conversion.preparation.weights if item.target.format == "nvfp4"]
    assert [(item.target.shape, item.target.divisors) for item in weights] == [
        ((768, 256), 1),
        ((768, 256), 1),
    ]


def test_a_group_stacks_matrices_with_different_divisors(
    gate_up: tuple[Path, list[Nvfp4]],
    convert_with: Callable[..., Path],
    logits: Callable[[Path], np.ndarray],
    reference_logits: Callable[..., np.ndarray],
):
    quantized, matrices = gate_up
    recipe = importing(MLP, "nvfp4", "AllowA4", f"    recipe.group({MLP})\n")
    path = convert_with(recipe, {"quantized": quantized})
    with open_artifact(path) as artifact:
        (part,) = artifact.parts("text/layers/3/mlp/up")
        record = tensor_record(artifact, part.object)
        assert (record.shape, record.divisors) == ((1536, 256), 2)
        words = artifact.words(part.object)
        codes = np.concatenate([matrix.codes for matrix in matrices])
        np.testing.assert_array_equal(words.codes, codes)
        np.testing.assert_array_equal(words.divisors.view(np.float32), [3000, 5000])
        assert set(activation_divisors(artifact).values()) == {20.0}
    values = {
        f"text/layers/3/mlp/{role}": matrix.values
        for role, matrix in zip(("gate", "up"), matrices, strict=True)
    }
    np.testing.assert_allclose(logits(path), reference_logits(values), rtol=0, atol=1e-4)


def test_a_stack_of_unequal_heights_is_refused(
    tensors: Tensors,
    write_weights: Callable[..., Path],
    plan: Callable[..., Conversion],
    tmp_path: Path,
):
    content: Tensors = {}
    for role, divisor in (("q", 4000.0), ("k", 5000.0)):
        weight = tensors[f"{LAYER}self_attn.{role}_proj.weight"]
        add_nvfp4(content, f"{LAYER}self_attn.{role}_proj", to_nvfp4(weight, divisor))
    quantized = write_weights(tmp_path / "quantized", content)
    names = '["text/layers/3/attention/query", "text/layers/3/attention/key"]'
    recipe = importing(names, "nvfp4", "A16Only", f"    recipe.group({names})\n")
    with pytest.raises(RecipeError, match="equal heights"):
        plan(recipe, {"quantized": quantized})


# --- what is refused -----------------------------------------------------------------------


@pytest.fixture
def one_matrix(tensors: Tensors) -> Tensors:
    content: Tensors = {}
    add_nvfp4(content, f"{LAYER}mlp.down_proj", to_nvfp4(tensors[f"{LAYER}mlp.down_proj.weight"]))
    return content


DOWN = '["text/layers/3/mlp/down"]'


@pytest.mark.parametrize("part", ["weight_scale", "weight_global_scale"])
def test_a_scale_that_is_absent_is_named(
    one_matrix: Tensors,
    write_weights: Callable[..., Path],
    plan: Callable[..., Conversion],
    tmp_path: Path,
    part: str,
):
    del one_matrix[f"{LAYER}mlp.down_proj.{part}"]
    quantized = write_weights(tmp_path / "quantized", one_matrix)
    with pytest.raises(CheckpointError) as caught:
        plan(importing(DOWN, "nvfp4"), {"quantized": quantized})
    assert caught.value.tensors == (f"{LAYER}mlp.down_proj.{part}",)
    assert caught.value.exit_code == ExitCode.INVALID_INPUT


def test_a_missing_fp8_scale_is_named(
    tensors: Tensors,
    write_weights: Callable[..., Path],
    plan: Callable[..., Conversion],
    tmp_path: Path,
):
    name = f"{LAYER}mlp.down_proj.weight"
    content = {name: tensors[name].astype(ml_dtypes.float8_e4m3fn)}
    quantized = write_weights(tmp_path / "quantized", content)
    with pytest.raises(CheckpointError) as caught:
        plan(importing(DOWN, "fp8_e4m3fn_row_bf16"), {"quantized": quantized})
    assert caught.value.tensors == (f"{name}_scale",)


def test_a_multiplier_under_the_name_of_a_divisor_is_refused(
    one_matrix: Tensors,
    write_weights: Callable[..., Path],
    plan: Callable[..., Conversion],
    tmp_path: Path,
):
    name = f"{LAYER}mlp.down_proj.weight_global_scale"
    one_matrix[name] = np.float32(1) / one_matrix[name]
    quantized = write_weights(tmp_path / "quantized", one_matrix)
    with pytest.raises(RecipeError, match="a divisor by its name") as caught:
        plan(importing(DOWN, "nvfp4"), {"quantized": quantized})
    assert name in str(caught.value)
    assert caught.value.parameters == ("text/layers/3/mlp/down",)
    assert caught.value.exit_code == ExitCode.INVALID_INPUT


def test_a_multiplier_of_activations_under_the_name_of_a_divisor_is_refused(
    one_matrix: Tensors,
    write_weights: Callable[..., Path],
    plan: Callable[..., Conversion],
    tmp_path: Path,
):
    name = f"{LAYER}mlp.down_proj.input_global_scale"
    one_matrix[name] = np.array([1 / 6000], np.float32)
    quantized = write_weights(tmp_path / "quantized", one_matrix)
    with pytest.raises(RecipeError, match="allow activations of up to") as caught:
        plan(importing(DOWN, "nvfp4", "AllowA4"), {"quantized": quantized})
    assert name in str(caught.value)


@pytest.mark.parametrize("value", [0.0, -3.0, np.inf, np.nan])
def test_a_global_scale_that_is_no_positive_number_is_refused(
    one_matrix: Tensors,
    write_weights: Callable[..., Path],
    plan: Callable[..., Conversion],
    tmp_path: Path,
    value: float,
):
    one_matrix[f"{LAYER}mlp.down_proj.weight_global_scale"] = np.array([value], np.float32)
    quantized = write_weights(tmp_path / "quantized", one_matrix)
    with pytest.raises(RecipeError, match="expected a finite number above 0"):
        plan(importing(DOWN, "nvfp4"), {"quantized": quantized})


def test_a_scale_word_that_is_no_number_is_located(
    one_matrix: Tensors,
    write_weights: Callable[..., Path],
    convert_with: Callable[..., Path],
    tmp_path: Path,
):
    scales = one_matrix[f"{LAYER}mlp.down_proj.weight_scale"].copy()
    scales.view(np.uint8)[5, 2] = 0x7F
    one_matrix[f"{LAYER}mlp.down_proj.weight_scale"] = scales
    quantized = write_weights(tmp_path / "quantized", one_matrix)
    with pytest.raises(ConversionError, match=r"text/layers/3/mlp/down.*scale word") as caught:
        convert_with(importing(DOWN, "nvfp4"), {"quantized": quantized})
    assert caught.value.exit_code == ExitCode.INVALID_INPUT
    assert not list(tmp_path.glob("out*"))


def test_allow_a4_without_a_calibrated_divisor_is_refused(
    one_matrix: Tensors,
    write_weights: Callable[..., Path],
    plan: Callable[..., Conversion],
    tmp_path: Path,
):
    del one_matrix[f"{LAYER}mlp.down_proj.input_global_scale"]
    quantized = write_weights(tmp_path / "quantized", one_matrix)
    with pytest.raises(RecipeError, match=r"text/layers/3/mlp/down.*activation_input_divisor"):
        plan(importing(DOWN, "nvfp4", "AllowA4"), {"quantized": quantized})
    explicit = (
        '    recipe.use("text/layers/3/mlp/down", "text/layers/3/mlp/product",\n'
        '               auxiliaries={"activation_input_divisor": 7.5})\n'
    )
    conversion = plan(importing(DOWN, "nvfp4", "AllowA4", explicit), {"quantized": quantized})
    (auxiliary,) = conversion.preparation.auxiliaries
    assert float(auxiliary.value.values) == 7.5


def test_a_matrix_that_is_not_encoded_cannot_be_imported(
    checkpoint: Path, plan: Callable[..., Conversion]
):
    with pytest.raises(CheckpointError, match="not encoded, expected nvfp4"):
        plan(importing(DOWN, "nvfp4"), {"quantized": checkpoint})


@pytest.mark.parametrize("suffix", ["input_scale", "weight_zero_point", "k_scale"])
def test_a_tensor_of_the_quantizer_must_be_mapped_or_ignored(
    one_matrix: Tensors,
    write_weights: Callable[..., Path],
    plan: Callable[..., Conversion],
    tmp_path: Path,
    suffix: str,
):
    name = f"{LAYER}mlp.down_proj.{suffix}"
    one_matrix[name] = np.ones(1, np.float32)
    quantized = write_weights(tmp_path / "quantized", one_matrix)
    with pytest.raises(CheckpointError) as caught:
        plan(importing(DOWN, "nvfp4"), {"quantized": quantized})
    assert caught.value.tensors == (name,)
    ignoring = importing(DOWN, "nvfp4", "A16Only", f'    recipe.ignore("*.{suffix}")\n')
    conversion = plan(ignoring, {"quantized": quantized})
    assert any(name in warning for warning in conversion.warnings)


def test_scales_of_weights_that_nothing_reads_do_not_matter(
    one_matrix: Tensors,
    tensors: Tensors,
    write_weights: Callable[..., Path],
    plan: Callable[..., Conversion],
    tmp_path: Path,
):
    add_nvfp4(one_matrix, f"{LAYER}mlp.up_proj", to_nvfp4(tensors[f"{LAYER}mlp.up_proj.weight"]))
    quantized = write_weights(tmp_path / "quantized", one_matrix)
    plan(importing(DOWN, "nvfp4"), {"quantized": quantized})


def test_another_geometry_is_refused_by_its_shape_or_its_configuration(
    one_matrix: Tensors,
    checkpoint: Path,
    write_weights: Callable[..., Path],
    plan: Callable[..., Conversion],
    tmp_path: Path,
):
    quantized = write_weights(tmp_path / "quantized", one_matrix)
    config = (checkpoint / "config.json").read_text("utf-8")
    (quantized / "config.json").write_text(
        config.replace('"linear_num_value_heads": 4', '"linear_num_value_heads": 8')
    )
    with pytest.raises(CheckpointError, match="linear_num_value_heads = 8, not 4"):
        plan(importing(DOWN, "nvfp4"), {"quantized": quantized})
    (quantized / "config.json").unlink()
    add_nvfp4(one_matrix, f"{LAYER}mlp.down_proj", to_nvfp4(np.ones((256, 512))))
    write_weights(quantized, one_matrix)
    with pytest.raises(CheckpointError, match=r"\[256, 512\], expected \[256, 768\]"):
        plan(importing(DOWN, "nvfp4"), {"quantized": quantized})


def test_the_other_prefix_is_understood(
    one_matrix: Tensors,
    tensors: Tensors,
    write_weights: Callable[..., Path],
    plan: Callable[..., Conversion],
    tmp_path: Path,
):
    content = {name.replace(TEXT, "model."): array for name, array in one_matrix.items()}
    content["model.embed_tokens.weight"] = tensors[f"{TEXT}embed_tokens.weight"]
    quantized = write_weights(tmp_path / "quantized", content)
    conversion = plan(importing(DOWN, "nvfp4"), {"quantized": quantized})
    assert [item.target.shape for item in conversion.preparation.weights].count((256, 768)) == 8


def test_a_shared_parameter_that_permits_a4_needs_its_own_divisor(
    one_matrix: Tensors,
    write_weights: Callable[..., Path],
    plan: Callable[..., Conversion],
    tmp_path: Path,
):
    quantized = write_weights(tmp_path / "quantized", one_matrix)
    share = (
        '    recipe.share("text/layers/7/mlp/down", "text/layers/3/mlp/down")\n'
        '    recipe.use("text/layers/7/mlp/down", "text/layers/7/mlp/product",\n'
        '               activation_policy="AllowA4"{more})\n'
    )
    with pytest.raises(RecipeError, match="text/layers/7/mlp/down"):
        plan(importing(DOWN, "nvfp4", "AllowA4", share.format(more="")), {"quantized": quantized})
    own = ', auxiliaries={"activation_input_divisor": 3.0}'
    conversion = plan(
        importing(DOWN, "nvfp4", "AllowA4", share.format(more=own)), {"quantized": quantized}
    )
    assert [float(item.value.values) for item in conversion.preparation.auxiliaries] == [10.0, 3.0]


def test_the_prefix_is_told_without_an_embedding(
    one_matrix: Tensors,
    write_weights: Callable[..., Path],
    plan: Callable[..., Conversion],
    tmp_path: Path,
):
    content = {name.replace(TEXT, "model."): array for name, array in one_matrix.items()}
    quantized = write_weights(tmp_path / "quantized", content)
    recipe = (
        "def configure(model, recipe, sources):\n"
        "    store = sources['quantized']\n"
        "    assert model.has_source('text/layers/3/mlp/down', store)\n"
        "    assert not model.has_source('text/layers/3/mlp/up', store)\n"
    )
    plan(recipe, {"quantized": quantized})


def test_a_code_that_is_no_number_is_located(
    tensors: Tensors,
    write_weights: Callable[..., Path],
    convert_with: Callable[..., Path],
    tmp_path: Path,
):
    name = f"{LAYER}mlp.down_proj.weight"
    codes = tensors[name].astype(ml_dtypes.float8_e4m3fn)
    codes.view(np.uint8)[7, 3] = 0xFF
    content = {name: codes, f"{name}_scale": np.ones((256, 1), ml_dtypes.bfloat16)}
    quantized = write_weights(tmp_path / "quantized", content)
    recipe = importing(DOWN, "fp8_e4m3fn_row_bf16")
    with pytest.raises(ConversionError, match=r"text/layers/3/mlp/down.*code") as caught:
        convert_with(recipe, {"quantized": quantized})
    assert caught.value.exit_code == ExitCode.INVALID_INPUT
    values = recipe.replace("import_encoded", "cast_direct").replace(
        "format='fp8_e4m3fn_row_bf16'", "format='bf16'"
    )
    with pytest.raises(ConversionError, match=r"nan at index \[7, 3\]"):
        convert_with(values, {"quantized": quantized})
    assert not list(tmp_path.glob("out*"))
