"""Block drafters beside the tiny model: their weights come from checkpoints of their own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ninfer_format import CheckpointError, UnsupportedConfigError, open_artifact
from ninfer_quant.cli.plan_table import plan_document
from ninfer_quant.errors import RecipeError
from ninfer_quant.pipeline.conversion import Conversion

from .conftest import tensor_record

V, D, TAPS = 4096, 256, 2
CONFIG: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "hidden_size": D,
    "vocab_size": V,
    "num_hidden_layers": 1,
    "layer_types": ["sliding_attention"],
    "sliding_window": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 256,
    "max_position_embeddings": 1024,
    "dflash_config": {
        "target_layer_ids": [1, 3],
        "mask_token_id": 4000,
        "conv_kernel_size": TAPS,
        "conv_group_size": 16,
        "selector_rank": 64,
        "selector_top_k": 8,
    },
}
SHAPES = {
    "fc.weight": (D, 2 * D),
    "hidden_norm.weight": (D,),
    "norm.weight": (D,),
    "candidate_selector.hidden_projection.weight": (64, D),
    "candidate_selector.predecessor_codebook": (V, 64),
    "candidate_selector.successor_codebook": (V, 64),
    "layers.0.input_layernorm.weight": (D,),
    "layers.0.post_attention_layernorm.weight": (D,),
    "layers.0.self_attn.q_proj.weight": (256, D),
    "layers.0.self_attn.k_proj.weight": (128, D),
    "layers.0.self_attn.v_proj.weight": (128, D),
    "layers.0.self_attn.q_norm.weight": (64,),
    "layers.0.self_attn.k_norm.weight": (64,),
    "layers.0.self_attn.o_proj.weight": (D, 256),
    "layers.0.mlp.gate_proj.weight": (256, D),
    "layers.0.mlp.up_proj.weight": (256, D),
    "layers.0.mlp.down_proj.weight": (D, 256),
    "layers.0.attention_conv.base_kernel": (2, TAPS, D),
    "layers.0.attention_conv.kernel_projection.weight": (2 * TAPS * D // 16, D),
    "layers.0.mlp_conv.base_kernel": (2, TAPS, D),
    "layers.0.mlp_conv.kernel_projection.weight": (2 * TAPS * D // 16, D),
}
COMPONENTS = ("text", "dflash2")


@pytest.fixture
def draft(
    write_weights: Callable[[Path, Mapping[str, np.ndarray]], Path], tmp_path: Path
) -> tuple[Path, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    tensors = {
        name: rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
        for name, shape in SHAPES.items()
    }
    folder = write_weights(tmp_path / "draft", tensors)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return folder, tensors


def test_a_drafter_is_stored_beside_a_text_that_runs(
    draft: tuple[Path, dict[str, np.ndarray]],
    convert_with: Callable[..., Path],
    convert: Callable[..., Path],
    logits: Callable[[Path], np.ndarray],
    tmp_path: Path,
):
    folder, tensors = draft
    path = convert_with("qwen3_8_27b", {"dflash2": folder}, components=COMPONENTS)
    with open_artifact(path) as artifact:
        block = "dflash2/layers/0/"
        assert artifact.parts(f"{block}attention/context_key") == artifact.parts(
            f"{block}attention/key"
        )
        formats = {
            name: tensor_record(artifact, artifact.parts(name)[0].object).format
            for name in artifact.directory.bindings
            if name.startswith("dflash2/")
        }
        direct = {name for name, format_ in formats.items() if format_ == "bf16"}
        assert {name for name in formats if "projection" in name} - direct == {
            "dflash2/feature_projection"
        }
        for name, tensor in (
            ("dflash2/candidate_selector/successor_codebook", SHAPES_CODEBOOK),
            (f"{block}mlp_conv/base_kernel", "layers.0.mlp_conv.base_kernel"),
        ):
            stored = artifact.decode_parameter(name).reshape(-1)
            np.testing.assert_array_equal(stored, tensors[tensor].astype(np.float32).reshape(-1))
        down = artifact.decode_parameter(f"{block}mlp/down", (D, 256))
        expected = tensors["layers.0.mlp.down_proj.weight"].astype(np.float32)
        assert np.abs(down - expected).max() < 0.02
    alone = convert(tmp_path / "alone.ninfer", components=("text",))
    np.testing.assert_array_equal(logits(path), logits(alone))


SHAPES_CODEBOOK = "candidate_selector.successor_codebook"


def test_the_configuration_of_a_drafter_is_enough_for_a_plan(
    draft: tuple[Path, dict[str, np.ndarray]], plan: Callable[..., Conversion], tmp_path: Path
):
    folder, _ = draft
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(folder / "config.json", bare)
    options: dict[str, Any] = {"components": COMPONENTS, "needs_weights": False}
    expected = plan_document(plan("qwen3_8_27b", {"dflash2": folder}, **options))
    found = plan_document(plan("qwen3_8_27b", {"dflash2": bare}, **options))
    assert found["tensors"] == expected["tensors"]
    assert found["payload_bytes"] == expected["payload_bytes"]
    assert found["assignments"] == expected["assignments"]
    with pytest.raises(CheckpointError, match=r"tensors are missing \(21\)"):
        plan("qwen3_8_27b", {"dflash2": bare}, components=COMPONENTS)


def test_tensors_of_a_drafter_that_nothing_reads_are_listed(
    draft: tuple[Path, dict[str, np.ndarray]],
    write_weights: Callable[..., Path],
    plan: Callable[..., Conversion],
):
    folder, tensors = draft
    write_weights(folder, tensors | {"layers.0.extra.weight": np.zeros(4, np.float32)})
    conversion = plan("qwen3_8_27b", {"dflash2": folder}, components=COMPONENTS)
    assert any("(1): layers.0.extra.weight" in warning for warning in conversion.warnings)


def test_a_drafter_without_its_checkpoint_is_refused(plan: Callable[..., Conversion]):
    with pytest.raises(RecipeError, match="'dflash2' was not given") as caught:
        plan("qwen3_8_27b", components=COMPONENTS)
    assert caught.value.hint == "give --source dflash2=PATH"


def test_a_drafter_of_another_model_is_refused(
    draft: tuple[Path, dict[str, np.ndarray]], plan: Callable[..., Conversion]
):
    folder, _ = draft
    (folder / "config.json").write_text(json.dumps(CONFIG | {"hidden_size": 5120}))
    with pytest.raises(UnsupportedConfigError, match=r"draft/config\.json.*hidden_size"):
        plan("qwen3_8_27b", {"dflash2": folder}, components=COMPONENTS)


def test_missing_tensors_of_a_drafter_are_listed(
    draft: tuple[Path, dict[str, np.ndarray]],
    write_weights: Callable[..., Path],
    plan: Callable[..., Conversion],
):
    folder, tensors = draft
    missing = {"fc.weight", "layers.0.mlp_conv.base_kernel"}
    write_weights(folder, {name: array for name, array in tensors.items() if name not in missing})
    with pytest.raises(CheckpointError) as caught:
        plan("qwen3_8_27b", {"dflash2": folder}, components=COMPONENTS)
    assert set(caught.value.tensors) == missing
