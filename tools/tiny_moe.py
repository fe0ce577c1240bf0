"""Make the checkpoint of a tiny mixture of experts, for tests.

    python tools/tiny_moe.py FOLDER [--per-expert]

The weights are random but the same everywhere: they come from the raw bits of PCG64 and need no
function whose rounding depends on the machine. Every value is exact in bf16. Both layouts of the
experts hold the same values. Tokenizer, template and the other files are those of the tiny trained
model, with a vocabulary of bytes, six merges and the special tokens.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from math import prod, sqrt
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
RESOURCES = ROOT / "tests/data/tiny-model/checkpoint"
NUM_BYTES, NUM_MERGES = 256, 6

V, D, LAYERS = 512, 128, 4
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 64
KEY_HEADS, VALUE_HEADS, DELTA_DIM, TAPS = 2, 4, 64, 4
EXPERTS, EXPERT_INNER, SHARED_INNER = 8, 128, 128
DEPTH, VISION_D, VISION_INNER, PATCH, FRAMES, MERGE, POSITIONS = 2, 64, 96, 16, 2, 2, 64

TEXT_CONFIG: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text",
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": LAYERS,
    "full_attention_interval": 4,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
    "linear_num_key_heads": KEY_HEADS,
    "linear_num_value_heads": VALUE_HEADS,
    "linear_key_head_dim": DELTA_DIM,
    "linear_value_head_dim": DELTA_DIM,
    "linear_conv_kernel_dim": TAPS,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": EXPERT_INNER,
    "shared_expert_intermediate_size": SHARED_INNER,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
}
VISION_CONFIG: dict[str, Any] = {
    "model_type": "qwen3_5_moe_vision",
    "depth": DEPTH,
    "hidden_size": VISION_D,
    "intermediate_size": VISION_INNER,
    "num_heads": 2,
    "in_channels": 3,
    "patch_size": PATCH,
    "temporal_patch_size": FRAMES,
    "spatial_merge_size": MERGE,
    "num_position_embeddings": POSITIONS,
    "out_hidden_size": D,
    "deepstack_visual_indexes": [],
}
Distribution = tuple[float, float]
"""Mean and standard deviation."""

OFFSET_NORM = (0.0, 0.2)
NORM = (1.0, 0.2)
F32 = (".A_log", ".dt_bias", "linear_attn.norm.weight")
"""Endings of the tensors that are stored in float32, as released checkpoints do."""


def write(folder: Path, *, per_expert: bool = False) -> None:
    """Write the checkpoint to a new folder."""
    folder.mkdir(parents=True)
    special = _write_tokenizer(folder)
    config = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "image_token_id": special["<|image_pad|>"],
        "video_token_id": special["<|video_pad|>"],
        "vision_start_token_id": special["<|vision_start|>"],
        "vision_end_token_id": special["<|vision_end|>"],
        "tie_word_embeddings": False,
        "text_config": TEXT_CONFIG,
        "vision_config": VISION_CONFIG,
    }
    _write_json(folder / "config.json", config)
    generation = {"eos_token_id": [special["<|im_end|>"], special["<|endoftext|>"]]}
    _write_json(folder / "generation_config.json", generation)
    for name in (
        "chat_template.jinja",
        "preprocessor_config.json",
        "video_preprocessor_config.json",
    ):
        shutil.copyfile(RESOURCES / name, folder / name)
    _write_safetensors(folder / "model.safetensors", dict(tensors(per_expert=per_expert)))


def tensors(*, per_expert: bool = False) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor by name in float32."""
    for name, shape, distribution in _shapes():
        if name.endswith((".gate_up_proj", ".down_proj")) and per_expert:
            yield from _unfused(name, _draw(name, shape, distribution))
        else:
            yield name, _draw(name, shape, distribution)


def _unfused(name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    prefix, _, role = name.rpartition(".")
    for expert, matrix in enumerate(values):
        if role == "down_proj":
            yield f"{prefix}.{expert}.down_proj.weight", matrix
            continue
        yield f"{prefix}.{expert}.gate_proj.weight", matrix[:EXPERT_INNER]
        yield f"{prefix}.{expert}.up_proj.weight", matrix[EXPERT_INNER:]


def _draw(name: str, shape: tuple[int, ...], distribution: Distribution) -> np.ndarray:
    """Values that only the name decides: sums of four uniform numbers of 16 bits, scaled."""
    raw = np.random.PCG64(crc32(name.encode())).random_raw(prod(shape))
    halves = raw.view(np.uint16).reshape(-1, 4).astype(np.int64)
    mean, deviation = distribution
    standard = (halves.sum(axis=1) - 2 * 65535) / (65536 / sqrt(3))
    values = mean + deviation * standard
    if name.endswith(".A_log"):
        # A logarithm of 0.01..16 whose uniform number is cut so coarsely that every libm agrees.
        values = np.log(0.01 + 15.99 * (halves[:, 0] / 65536))
    return _bf16_values(values.astype(np.float32)).reshape(shape)


def _shapes() -> Iterator[tuple[str, tuple[int, ...], Distribution]]:
    text = "model.language_model."
    yield f"{text}embed_tokens.weight", (V, D), _matrix(D)
    yield f"{text}norm.weight", (D,), OFFSET_NORM
    yield "lm_head.weight", (V, D), _matrix(D)
    for layer in range(LAYERS):
        yield from _layer(f"{text}layers.{layer}.", is_full=layer % 4 == 3)
    yield "mtp.fc.weight", (D, 2 * D), _matrix(2 * D)
    for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        yield f"mtp.{norm}.weight", (D,), OFFSET_NORM
    yield from _layer("mtp.layers.0.", is_full=True)
    yield from _vision("model.visual.")


def _matrix(K: int) -> Distribution:
    return 0.0, 0.5 / sqrt(K)


def _layer(prefix: str, *, is_full: bool) -> Iterator[tuple[str, tuple[int, ...], Distribution]]:
    yield f"{prefix}input_layernorm.weight", (D,), OFFSET_NORM
    yield f"{prefix}post_attention_layernorm.weight", (D,), OFFSET_NORM
    yield from (_attention if is_full else _delta_net)(prefix)
    mlp = f"{prefix}mlp."
    yield f"{mlp}gate.weight", (EXPERTS, D), _matrix(D)
    yield f"{mlp}experts.gate_up_proj", (EXPERTS, 2 * EXPERT_INNER, D), _matrix(D)
    yield f"{mlp}experts.down_proj", (EXPERTS, D, EXPERT_INNER), _matrix(EXPERT_INNER)
    shared = f"{mlp}shared_expert."
    yield f"{shared}gate_proj.weight", (SHARED_INNER, D), _matrix(D)
    yield f"{shared}up_proj.weight", (SHARED_INNER, D), _matrix(D)
    yield f"{shared}down_proj.weight", (D, SHARED_INNER), _matrix(SHARED_INNER)
    yield f"{mlp}shared_expert_gate.weight", (1, D), _matrix(D)


def _attention(prefix: str) -> Iterator[tuple[str, tuple[int, ...], Distribution]]:
    q, k = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    attention = f"{prefix}self_attn."
    yield f"{attention}q_proj.weight", (2 * q, D), _matrix(D)
    yield f"{attention}k_proj.weight", (k, D), _matrix(D)
    yield f"{attention}v_proj.weight", (k, D), _matrix(D)
    yield f"{attention}o_proj.weight", (D, q), _matrix(q)
    yield f"{attention}q_norm.weight", (HEAD_DIM,), OFFSET_NORM
    yield f"{attention}k_norm.weight", (HEAD_DIM,), OFFSET_NORM


def _delta_net(prefix: str) -> Iterator[tuple[str, tuple[int, ...], Distribution]]:
    keys, values = KEY_HEADS * DELTA_DIM, VALUE_HEADS * DELTA_DIM
    channels = 2 * keys + values
    delta = f"{prefix}linear_attn."
    yield f"{delta}in_proj_qkv.weight", (channels, D), _matrix(D)
    yield f"{delta}in_proj_z.weight", (values, D), _matrix(D)
    yield f"{delta}in_proj_a.weight", (VALUE_HEADS, D), _matrix(D)
    yield f"{delta}in_proj_b.weight", (VALUE_HEADS, D), _matrix(D)
    yield f"{delta}conv1d.weight", (channels, 1, TAPS), (0.0, 0.5)
    yield f"{delta}A_log", (VALUE_HEADS,), (0.0, 0.0)
    yield f"{delta}dt_bias", (VALUE_HEADS,), (0.5, 0.5)
    yield f"{delta}norm.weight", (DELTA_DIM,), NORM
    yield f"{delta}out_proj.weight", (D, values), _matrix(values)


def _vision(prefix: str) -> Iterator[tuple[str, tuple[int, ...], Distribution]]:
    h, merged = VISION_D, MERGE**2 * VISION_D
    patch = (h, 3, FRAMES, PATCH, PATCH)
    yield f"{prefix}patch_embed.proj.weight", patch, _matrix(prod(patch[1:]))
    yield f"{prefix}patch_embed.proj.bias", (h,), OFFSET_NORM
    yield f"{prefix}pos_embed.weight", (POSITIONS, h), OFFSET_NORM
    for block in range(DEPTH):
        inside = f"{prefix}blocks.{block}."
        for norm in ("norm1", "norm2"):
            yield f"{inside}{norm}.weight", (h,), NORM
            yield f"{inside}{norm}.bias", (h,), OFFSET_NORM
        yield from _biased(f"{inside}attn.qkv", 3 * h, h)
        yield from _biased(f"{inside}attn.proj", h, h)
        yield from _biased(f"{inside}mlp.linear_fc1", VISION_INNER, h)
        yield from _biased(f"{inside}mlp.linear_fc2", h, VISION_INNER)
    yield f"{prefix}merger.norm.weight", (h,), NORM
    yield f"{prefix}merger.norm.bias", (h,), OFFSET_NORM
    yield from _biased(f"{prefix}merger.linear_fc1", merged, merged)
    yield from _biased(f"{prefix}merger.linear_fc2", D, merged)


def _biased(name: str, N: int, K: int) -> Iterator[tuple[str, tuple[int, ...], Distribution]]:
    yield f"{name}.weight", (N, K), _matrix(K)
    yield f"{name}.bias", (N,), OFFSET_NORM


def _write_tokenizer(folder: Path) -> dict[str, int]:
    """Cut the vocabulary of the tiny trained model; returns the ids of the added tokens."""
    tokenizer = json.loads((RESOURCES / "tokenizer.json").read_text(encoding="utf-8"))
    model = tokenizer["model"]
    kept = NUM_BYTES + NUM_MERGES
    model["vocab"] = {text: index for text, index in model["vocab"].items() if index < kept}
    model["merges"] = model["merges"][:NUM_MERGES]
    for offset, token in enumerate(tokenizer["added_tokens"]):
        token["id"] = kept + offset
    _write_json(folder / "tokenizer.json", tokenizer)
    settings = json.loads((RESOURCES / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["added_tokens_decoder"] = {
        str(token["id"]): {name: value for name, value in token.items() if name != "id"}
        for token in tokenizer["added_tokens"]
    }
    _write_json(folder / "tokenizer_config.json", settings)
    return {token["content"]: token["id"] for token in tokenizer["added_tokens"]}


def _write_json(path: Path, value: object) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False, sort_keys=False)
    path.write_text(text + "\n", encoding="utf-8")


def _bf16_words(values: np.ndarray) -> np.ndarray:
    """Words of the nearest bf16 numbers, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _bf16_values(values: np.ndarray) -> np.ndarray:
    return (_bf16_words(values).astype(np.uint32) << 16).view(np.float32)


def _write_safetensors(path: Path, values: dict[str, np.ndarray]) -> None:
    header: dict[str, Any] = {}
    data = []
    end = 0
    for name, array in values.items():
        is_f32 = name.endswith(F32)
        data.append(array.tobytes() if is_f32 else _bf16_words(array).tobytes())
        offsets = [end, end + len(data[-1])]
        dtype = "F32" if is_f32 else "BF16"
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        end = offsets[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def main() -> None:
    """Run the tool."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--per-expert", action="store_true", help="three tensors for each expert")
    arguments = parser.parse_args()
    write(arguments.folder, per_expert=arguments.per_expert)


if __name__ == "__main__":
    main()
