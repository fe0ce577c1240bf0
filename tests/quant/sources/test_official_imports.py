"""The built-in recipes that import words, on the tiny model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ninfer_format import CheckpointError, open_artifact
from ninfer_format.errors import ExitCode
from ninfer_quant.errors import RecipeError
from ninfer_quant.pipeline.conversion import Conversion

from .conftest import TEXT, Tensors, tensor_record, to_nvfp4

MLP = tuple(f"text/layers/3/mlp/{role}" for role in ("gate", "up", "down"))
MATRICES = (
    "linear_attn.in_proj_qkv",
    "linear_attn.in_proj_z",
    "linear_attn.out_proj",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)


def is_matrix(name: str) -> bool:
    return name.startswith(TEXT) and name.removesuffix(".weight").endswith(MATRICES)


def nvfp4_tensors(module: str, weight: np.ndarray) -> Tensors:
    matrix = to_nvfp4(weight, 2000.0)
    return {
        f"{module}.weight_packed": matrix.packed,
        f"{module}.weight_scale": matrix.scales,
        f"{module}.weight_global_scale": np.array([2000.0], np.float32),
        f"{module}.input_global_scale": np.array([30.0], np.float32),
    }


def fp8_tensors(module: str, weight: np.ndarray) -> Tensors:
    values = weight.astype(np.float32)
    scale = (np.abs(values).max(axis=1, keepdims=True) / 448).astype(ml_dtypes.bfloat16)
    codes = (values / scale.astype(np.float32)).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
    return {f"{module}.weight": codes, f"{module}.weight_scale": scale}


def test_nvfp4_of_the_text_with_direct_attention(
    tensors: Tensors,
    write_weights: Callable[..., Path],
    convert_with: Callable[..., Path],
    logits: Callable[[Path], np.ndarray],
    direct: Path,
    tmp_path: Path,
):
    content: Tensors = {}
    for name in filter(is_matrix, tensors):
        content |= nvfp4_tensors(name.removesuffix(".weight"), tensors[name])
    path = convert_with(
        "qwen3_6_27b_nvfp4", {"quantized": write_weights(tmp_path / "quantized", content)}
    )
    with open_artifact(path) as artifact:
        formats = {
            name: tensor_record(artifact, artifact.parts(name)[0].object).format
            for name in artifact.directory.bindings
        }
        assert formats["text/layers/0/gdn/query"] == formats["text/layers/7/mlp/up"] == "nvfp4"
        assert formats["text/layers/4/gdn/output"] == formats["text/layers/3/attention/key"]
        assert formats["text/layers/4/gdn/output"] == "bf16"
        assert formats["text/token_embedding"] == "q8_g32_fp16"
        allowed = {
            use.parameter for use in artifact.directory.uses if use.activation_policy == "AllowA4"
        }
        assert allowed == {name for name, format_ in formats.items() if format_ == "nvfp4"}
    # Four bits everywhere change the model, but it is still the same one.
    found, expected = logits(path), logits(direct)
    assert np.corrcoef(found.reshape(-1), expected.reshape(-1))[0, 1] > 0.95


def test_all_scales_that_are_absent_are_named(
    tensors: Tensors,
    write_weights: Callable[..., Path],
    plan: Callable[..., Conversion],
    tmp_path: Path,
):
    content: Tensors = {}
    for name in filter(is_matrix, tensors):
        content |= nvfp4_tensors(name.removesuffix(".weight"), tensors[name])
    absent = {f"{TEXT}layers.{layer}.mlp.up_proj.weight_scale" for layer in (1, 5)}
    for name in absent:
        del content[name]
    with pytest.raises(CheckpointError, match=r"tensors are missing \(2\)") as caught:
        plan("qwen3_6_27b_nvfp4", {"quantized": write_weights(tmp_path / "quantized", content)})
    assert set(caught.value.tensors) == absent
    assert caught.value.exit_code == ExitCode.INVALID_INPUT


def test_the_newest_recipe_mixes_both_formats_of_the_source(
    tensors: Tensors,
    write_weights: Callable[..., Path],
    convert_with: Callable[..., Path],
    logits: Callable[[Path], np.ndarray],
    direct: Path,
    tmp_path: Path,
):
    content: Tensors = {}
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        if ".mlp." in name and is_matrix(name):
            content |= nvfp4_tensors(module, tensor)
        elif is_matrix(name) or name == "lm_head.weight":
            content |= fp8_tensors(module, tensor)
        elif name.startswith(TEXT):
            content[name] = tensor
    path = convert_with(
        "qwen3_8_27b_nvfp4", {"quantized": write_weights(tmp_path / "quantized", content)}
    )
    with open_artifact(path) as artifact:
        formats = {
            name: tensor_record(artifact, artifact.parts(name)[0].object).format
            for name in artifact.directory.bindings
        }
        assert formats["text/layers/7/mlp/down"] == "nvfp4"
        for name in ("text/token_embedding", "text/output_head", "text/layers/3/attention/gate"):
            assert formats[name] == "fp8_e4m3fn_row_bf16"
        controls = [f"text/layers/0/gdn/{role}_projection" for role in ("a", "b")]
        (first, second) = (artifact.parts(name)[0] for name in controls)
        assert first.object == second.object
        policies = {use.parameter: use.activation_policy for use in artifact.directory.uses}
        assert policies["text/output_head"] == "AllowA8"
        assert policies[controls[0]] == "A16Only"
    found, expected = logits(path), logits(direct)
    assert np.corrcoef(found.reshape(-1), expected.reshape(-1))[0, 1] > 0.95


# --- trellis codes -------------------------------------------------------------------------


def trellis(name: str, N: int, K: int, half_bits: int = 6) -> Tensors:
    rng = np.random.default_rng(N)
    return {
        f"{name}.trellis": rng.integers(0, 256, (N // 16, K // 16, 16 * half_bits), np.uint8),
        f"{name}.su": rng.choice([-1, 1], K).astype(np.float32),
        f"{name}.sv": rng.uniform(0.0001, 0.001, N).astype(np.float32),
    }


def test_groups_are_stored_under_their_first_member(
    write_weights: Callable[..., Path], convert_with: Callable[..., Path], tmp_path: Path
):
    content = (
        trellis("text/layers/3/attention/query", 1536, 256)
        | trellis("text/layers/0/gdn/query", 512, 256)
        | trellis("text/layers/3/mlp/down", 256, 768)
        | trellis("text/output_head", 4096, 256)
    )
    quantized = write_weights(tmp_path / "quantized", content)
    path = convert_with("qwen3_8_27b_exl3", {"quantized": quantized})
    with open_artifact(path) as artifact:
        begin = 0
        for role, rows in (("query", 512), ("key", 256), ("gate", 512), ("value", 256)):
            (part,) = artifact.parts(f"text/layers/3/attention/{role}")
            assert (part.begin, part.end) == (begin * 256, (begin + rows) * 256)
            begin += rows
        stored = artifact.words(part.object)
        np.testing.assert_array_equal(
            stored.tiles, content["text/layers/3/attention/query.trellis"]
        )
        # In layer 0 query and key are one matrix; value and z are not there and stay bf16.
        parents = [
            tensor_record(artifact, artifact.parts(f"text/layers/0/gdn/{role}")[0].object)
            for role in ("query", "key", "value", "z")
        ]
        assert parents[0] == parents[1]
        assert [parent.format for parent in parents[1:]] == ["exl3_mul1", "bf16", "bf16"]
        for name in ("text/layers/3/mlp/down", "text/output_head"):
            record = tensor_record(artifact, artifact.parts(name)[0].object)
            assert (record.format, record.bitrate_half_bits) == ("exl3_mul1", 6)
        assert {use.activation_policy for use in artifact.directory.uses} == {"A16Only"}


def test_a_matrix_of_another_shape_is_refused(
    write_weights: Callable[..., Path], plan: Callable[..., Conversion], tmp_path: Path
):
    content = trellis("text/layers/3/mlp/down", 256, 512)
    quantized = write_weights(tmp_path / "quantized", content)
    with pytest.raises(CheckpointError, match=r"\[256, 512\], expected \[256, 768\]"):
        plan("qwen3_8_27b_exl3", {"quantized": quantized})


def test_a_source_without_trellis_codes_is_refused(
    checkpoint: Path, plan: Callable[..., Conversion]
):
    with pytest.raises(RecipeError, match="no folder of trellis codes"):
        plan("qwen3_8_27b_exl3", {"quantized": checkpoint})
