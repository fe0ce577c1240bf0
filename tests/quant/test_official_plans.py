"""Plans of the built-in recipes over the real geometries: object counts of published artifacts.

The models are configurations without weights. Quantized sources are Safetensors files with the real
headers and no data but the global scales; the rest of such a file is a hole that takes no space.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_quant.cli.plan_table import plan_document
from ninfer_quant.errors import RecipeError
from ninfer_quant.pipeline.conversion import ConversionRequest, plan_conversion
from ninfer_quant.recipes.loading import load_recipe
from ninfer_quant.recipes.proposal import ProposalRequest

PREFIX = "model.language_model."
V = 248320
VISION = {
    "model_type": "qwen3_5_vision",
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 2304,
}
TEXT = {
    "vocab_size": V,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "head_dim": 256,
    "rope_parameters": {"rope_theta": 1e7, "mrope_section": [11, 11, 10]},
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mtp_num_hidden_layers": 1,
}
CONFIG_27B: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": TEXT
    | {
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "linear_num_value_heads": 48,
        "intermediate_size": 17408,
    },
    "vision_config": VISION,
}
CONFIG_DFLASH2: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "hidden_size": 5120,
    "vocab_size": V,
    "num_hidden_layers": 5,
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 17408,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e7,
    "dflash_config": {
        "target_layer_ids": [5, 19, 33, 47, 61],
        "mask_token_id": 248070,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
    },
}
CONFIG_35B: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "text_config": TEXT
    | {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 32,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    "vision_config": VISION | {"model_type": "qwen3_5_moe_vision"},
}
CONFIG_DFLASH: dict[str, Any] = CONFIG_DFLASH2 | {
    "architectures": ["DFlashDraftModel"],
    "hidden_size": 2048,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    "sliding_window": 4096,
    "intermediate_size": 6144,
    "dflash_config": {
        "target_layer_ids": [1, 6, 11, 16, 22, 27, 32, 37],
        "mask_token_id": 248077,
    },
}
Tensor = tuple[str, str, tuple[int, ...], bytes | None]
"""Name, type, shape, and the data of a tensor that is not a hole."""

_ITEM_BYTES = {"U8": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4}


def write_holes(folder: Path, tensors: list[Tensor]) -> Path:
    """Write a Safetensors file whose tensors are holes but for the data that is given."""
    folder.mkdir()
    header: dict[str, Any] = {}
    end = 0
    for name, dtype, shape, _ in tensors:
        size = prod(shape) * _ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
        for name, _, _, data in tensors:
            if data is not None:
                file.seek(8 + len(text) + header[name]["data_offsets"][0])
                file.write(data)
    return folder


def nvfp4(module: str, N: int, K: int, divisor: float = 4000.0) -> list[Tensor]:
    scalar = np.float32(divisor).tobytes()
    return [
        (f"{module}.weight_packed", "U8", (N, K // 2), None),
        (f"{module}.weight_scale", "F8_E4M3", (N, K // 16), None),
        (f"{module}.weight_global_scale", "F32", (1,), scalar),
        (f"{module}.input_global_scale", "F32", (1,), scalar),
    ]


def fp8(module: str, N: int, K: int) -> list[Tensor]:
    scales = np.full(N, 0x3C00, np.uint16).tobytes()
    return [
        (f"{module}.weight", "F8_E4M3", (N, K), None),
        (f"{module}.weight_scale", "BF16", (N, 1), scales),
    ]


def plain(name: str, *shape: int) -> Tensor:
    return name, "BF16", shape, None


def layer_modules(layer: int) -> Iterator[tuple[str, int, int]]:
    """Matrices of a layer of the 27B models but for the decay controls."""
    prefix = f"{PREFIX}layers.{layer}."
    if (layer + 1) % 4 == 0:
        for role, rows in (("q", 12288), ("k", 1024), ("v", 1024)):
            yield f"{prefix}self_attn.{role}_proj", rows, 5120
        yield f"{prefix}self_attn.o_proj", 5120, 6144
    else:
        yield f"{prefix}linear_attn.in_proj_qkv", 10240, 5120
        yield f"{prefix}linear_attn.in_proj_z", 6144, 5120
        yield f"{prefix}linear_attn.out_proj", 5120, 6144
    yield f"{prefix}mlp.gate_proj", 17408, 5120
    yield f"{prefix}mlp.up_proj", 17408, 5120
    yield f"{prefix}mlp.down_proj", 5120, 17408


def layer_rest(layer: int) -> Iterator[Tensor]:
    """Everything else of a layer."""
    prefix = f"{PREFIX}layers.{layer}."
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield plain(f"{prefix}{norm}.weight", 5120)
    if (layer + 1) % 4 == 0:
        for norm in ("q_norm", "k_norm"):
            yield plain(f"{prefix}self_attn.{norm}.weight", 256)
        return
    delta = f"{prefix}linear_attn."
    yield plain(f"{delta}A_log", 48)
    yield plain(f"{delta}dt_bias", 48)
    yield plain(f"{delta}conv1d.weight", 10240, 1, 4)
    yield plain(f"{delta}norm.weight", 128)
    for control in ("in_proj_a", "in_proj_b"):
        yield plain(f"{delta}{control}.weight", 48, 5120)


@pytest.fixture
def model(tmp_path: Path) -> Callable[[str, dict[str, Any]], Path]:
    """Make a folder with a configuration alone."""

    def make(name: str, config: dict[str, Any]) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return folder

    return make


@pytest.fixture
def ranking(tmp_path: Path) -> Path:
    """A ranking in which every token is counted once."""
    path = tmp_path / "ranking.bin"
    path.write_bytes(np.ones(V, "<i8").tobytes())
    return path


@pytest.fixture
def plan(
    model: Callable[[str, dict[str, Any]], Path], ranking: Path
) -> Callable[..., dict[str, Any]]:
    """The document of ``--plan`` of a recipe with a proposal head."""

    def run(
        recipe: str,
        components: tuple[str, ...] = ("text", "vision", "mtp"),
        config: dict[str, Any] = CONFIG_27B,
        **sources: Path,
    ) -> dict[str, Any]:
        request = ConversionRequest(
            model=model("model", config),
            recipe=load_recipe(recipe),
            components=components,
            sources={name: str(path) for name, path in sources.items()},
            proposal=ProposalRequest(131072, ranking),
        )
        return plan_document(plan_conversion(request, needs_weights=False))

    return run


def formats(document: dict[str, Any]) -> Counter[str]:
    """Weight objects by format."""
    objects = {row["object"]: row["format"] for row in document["assignments"]}
    return Counter(objects.values())


def test_qwen3_6_27b(plan: Callable[..., dict[str, Any]]):
    document = plan("qwen3_6_27b")
    assert document["tensors"] == 3 + 16 * 9 + 48 * 13 + 2 + 12 + 333 == 1118
    # The published arithmetic; the objects begin at multiples of 256 bytes.
    assert 0 <= document["payload_bytes"] - 17_482_342_304 < 256 * 1118


def test_qwen3_8_27b_with_dflash2(
    plan: Callable[..., dict[str, Any]], model: Callable[[str, dict[str, Any]], Path]
):
    draft = model("dflash2", CONFIG_DFLASH2)
    write = draft_tensors()
    folder = write_holes(draft / "weights", write)
    (folder / "config.json").write_bytes((draft / "config.json").read_bytes())
    document = plan("qwen3_8_27b", ("text", "vision", "mtp", "dflash2"), dflash2=folder)
    assert document["tensors"] == 1118 + 66 == 1184
    assert 0 <= document["payload_bytes"] - 20_424_296_864 < 256 * 1184
    shared = [row for row in document["assignments"] if row["method"] == "shared"]
    assert len(shared) == 10


def draft_tensors() -> list[Tensor]:
    tensors = [
        plain("fc.weight", 5120, 25600),
        plain("hidden_norm.weight", 5120),
        plain("norm.weight", 5120),
        plain("candidate_selector.hidden_projection.weight", 256, 5120),
        plain("candidate_selector.predecessor_codebook", V, 256),
        plain("candidate_selector.successor_codebook", V, 256),
    ]
    for layer in range(5):
        prefix = f"layers.{layer}."
        tensors += [
            plain(f"{prefix}input_layernorm.weight", 5120),
            plain(f"{prefix}post_attention_layernorm.weight", 5120),
            plain(f"{prefix}self_attn.q_proj.weight", 4096, 5120),
            plain(f"{prefix}self_attn.k_proj.weight", 1024, 5120),
            plain(f"{prefix}self_attn.v_proj.weight", 1024, 5120),
            plain(f"{prefix}self_attn.q_norm.weight", 128),
            plain(f"{prefix}self_attn.k_norm.weight", 128),
            plain(f"{prefix}self_attn.o_proj.weight", 5120, 4096),
            plain(f"{prefix}mlp.gate_proj.weight", 17408, 5120),
            plain(f"{prefix}mlp.up_proj.weight", 17408, 5120),
            plain(f"{prefix}mlp.down_proj.weight", 5120, 17408),
        ]
        for branch in ("attention_conv", "mlp_conv"):
            tensors.append(plain(f"{prefix}{branch}.base_kernel", 2, 2, 5120))
            tensors.append(plain(f"{prefix}{branch}.kernel_projection.weight", 1280, 5120))
    assert sum(prod(shape) for _, _, shape, _ in tensors) == 1_924_404_480
    return tensors


def test_qwen3_6_27b_nvfp4(plan: Callable[..., dict[str, Any]], tmp_path: Path):
    tensors = [
        tensor
        for layer in range(64)
        for module, N, K in layer_modules(layer)
        for tensor in nvfp4(module, N, K)
    ]
    document = plan("qwen3_6_27b_nvfp4", quantized=write_holes(tmp_path / "quantized", tensors))
    assert document["tensors"] == 1054 + 485 == 1539
    assert formats(document)["nvfp4"] == 10 + 14 + 48 + 47 + 128 == 247


def test_qwen3_8_27b_nvfp4_with_dflash2(
    plan: Callable[..., dict[str, Any]],
    model: Callable[[str, dict[str, Any]], Path],
    tmp_path: Path,
):
    tensors: list[Tensor] = [plain(f"{PREFIX}norm.weight", 5120)]
    tensors.append(plain(f"{PREFIX}embed_tokens.weight", V, 5120))
    tensors += fp8("lm_head", V, 5120)
    for layer in range(64):
        tensors += layer_rest(layer)
        for module, N, K in layer_modules(layer):
            is_block_scaled = ".mlp." in module and layer < 56
            tensors += (nvfp4 if is_block_scaled else fp8)(module, N, K)
    draft = model("config", CONFIG_DFLASH2)
    folder = write_holes(draft / "weights", draft_tensors())
    (folder / "config.json").write_bytes((draft / "config.json").read_bytes())
    document = plan(
        "qwen3_8_27b_nvfp4",
        ("text", "vision", "mtp", "dflash2"),
        quantized=write_holes(tmp_path / "quantized", tensors),
        dflash2=folder,
    )
    assert document["tensors"] == 1072 + 168 == 1240
    counts = formats(document)
    assert (counts["nvfp4"], counts["fp8_e4m3fn_row_bf16"]) == (112, 146)


def dflash_tensors() -> list[Tensor]:
    tensors = [
        plain("fc.weight", 2048, 8 * 2048),
        plain("hidden_norm.weight", 2048),
        plain("norm.weight", 2048),
    ]
    for layer in range(6):
        prefix = f"layers.{layer}."
        tensors += [
            plain(f"{prefix}input_layernorm.weight", 2048),
            plain(f"{prefix}post_attention_layernorm.weight", 2048),
            plain(f"{prefix}self_attn.q_proj.weight", 4096, 2048),
            plain(f"{prefix}self_attn.k_proj.weight", 1024, 2048),
            plain(f"{prefix}self_attn.v_proj.weight", 1024, 2048),
            plain(f"{prefix}self_attn.q_norm.weight", 128),
            plain(f"{prefix}self_attn.k_norm.weight", 128),
            plain(f"{prefix}self_attn.o_proj.weight", 2048, 4096),
            plain(f"{prefix}mlp.gate_proj.weight", 6144, 2048),
            plain(f"{prefix}mlp.up_proj.weight", 6144, 2048),
            plain(f"{prefix}mlp.down_proj.weight", 2048, 6144),
        ]
    assert len(tensors) == 69
    assert sum(prod(shape) for _, _, shape, _ in tensors) == 385_906_176
    return tensors


def test_qwen3_6_35b_a3b_with_dflash(
    plan: Callable[..., dict[str, Any]],
    model: Callable[[str, dict[str, Any]], Path],
    tmp_path: Path,
):
    draft = write_holes(tmp_path / "dflash", dflash_tensors())
    (draft / "config.json").write_text(json.dumps(CONFIG_DFLASH), encoding="utf-8")
    document = plan(
        "qwen3_6_35b_a3b", ("text", "vision", "mtp", "dflash"), CONFIG_35B, dflash=draft
    )
    assert document["tensors"] == 3 + 10 * 11 + 30 * 14 + 2 + 15 + 333 + 51 == 934
    # The published file has the tokenizer and a directory of 31,000 parameters beside the tensors.
    assert 0 < 22_790_484_480 - document["payload_bytes"] < 22_000_000


def test_qwen3_6_35b_a3b_nvfp4_stacks_256_experts(
    plan: Callable[..., dict[str, Any]], tmp_path: Path
):
    tensors: list[Tensor] = []
    layers = 4
    for layer in range(layers):
        mlp = f"{PREFIX}layers.{layer}.mlp."
        for expert in range(256):
            for role in ("gate", "up"):
                tensors += nvfp4(f"{mlp}experts.{expert}.{role}_proj", 512, 2048, 3000.0 + expert)
            tensors += nvfp4(f"{mlp}experts.{expert}.down_proj", 2048, 512, 3000.0 + expert)
        for role in ("gate", "up"):
            tensors += nvfp4(f"{mlp}shared_expert.{role}_proj", 512, 2048)
        tensors += nvfp4(f"{mlp}shared_expert.down_proj", 2048, 512)
    document = plan(
        "qwen3_6_35b_a3b_nvfp4",
        config=CONFIG_35B
        | {"text_config": CONFIG_35B["text_config"] | {"num_hidden_layers": layers}},
        quantized=write_holes(tmp_path / "quantized", tensors),
    )
    assert formats(document)["nvfp4"] == layers * 4
    weights = 3 + 11 + 3 * 14 + 2 + 15 + 333
    assert document["tensors"] == weights + layers * 257 * 3


def test_a_source_that_the_recipe_needs_is_named(plan: Callable[..., dict[str, Any]]):
    with pytest.raises(RecipeError, match="source 'quantized' was not given") as caught:
        plan("qwen3_6_27b_nvfp4")
    assert caught.value.hint == "give --source quantized=PATH"
