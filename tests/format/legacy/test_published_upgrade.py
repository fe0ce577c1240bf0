"""The upgrade of published models: the official directory, and real bytes in a small model's sizes."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import (
    GroupedWords,
    codec_for,
    open_artifact,
    open_legacy,
    published_table,
    upgrade_artifact,
)
from ninfer_format.container.plan import place_specs
from ninfer_format.container.schema import FileSegment
from ninfer_format.container.segments import DEFAULT_MAX_FILE_BYTES, plan_files
from ninfer_format.legacy import identities
from ninfer_format.legacy.directory import parse_legacy_directory
from ninfer_format.legacy.geometry import DraftGeometry, TextGeometry, VisionGeometry
from ninfer_format.legacy.identities import PublishedModel
from ninfer_format.legacy.upgrade import plan_upgrade

OFFICIAL = "official_qwen3_6_27b_groupwise_int"

WriteLegacy = Callable[..., Path]
Place = Callable[..., list[dict[str, Any]]]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_the_official_directory_is_laid_out_like_the_reference(legacy: Path):
    """All but the copying of 17 GB: objects, template, metadata, provenance, files, JSON length."""
    text = (legacy / f"{OFFICIAL}.v3.expected.json").read_text("utf-8")
    wanted = json.loads(text)
    root = json.loads(gzip.decompress((legacy / f"{OFFICIAL}.v2_directory.json.gz").read_bytes()))
    reference = json.loads(
        gzip.decompress((legacy / f"{OFFICIAL}.v3_directory.json.gz").read_bytes())
    )
    source = parse_legacy_directory(root, 2, wanted["v2_payload_bytes"])
    template = bytes(wanted["new_template_bytes"])
    plan = plan_upgrade(source, wanted["v2_payload_bytes"], published_table(source), template)
    added = place_specs([addition.spec for addition in plan.additions], plan.kept_bytes)
    directory = replace(
        plan.directory,
        objects=(*plan.directory.objects, *added),
        files=(FileSegment(None, added[-1].end),),
    )
    files = plan_files(directory, wanted["entry_name"], DEFAULT_MAX_FILE_BYTES)
    found = files.directory.to_json()
    assert found == reference
    canonical = json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert sha256(canonical.encode()) == wanted["v3_directory_canonical_sha256"]
    for section, digest in wanted["section_canonical_sha256"].items():
        value = json.dumps(
            found[section], sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )
        assert sha256(value.encode()) == digest, section
    assert len(files.json_bytes) == wanted["json_bytes"]
    assert files.entry_payload_start == wanted["entry_payload_start"]
    assert found["files"] == wanted["files"]


TINY = TextGeometry(
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=2,
    num_key_value_heads=1,
    linear_num_value_heads=4,
    feed_forward=96,
    vocab_size=128,
    head_dim=32,
    linear_num_key_heads=2,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    proposal_rows=40,
)
TINY_VISION = VisionGeometry(
    depth=1,
    hidden_size=32,
    intermediate_size=48,
    patch_size=4,
    num_position_embeddings=16,
)
TINY_DRAFT = DraftGeometry(
    architecture="DFlashDraftModel",
    intermediate_size=48,
    layer_types=("full_attention",),
    sliding_window=8,
    target_layer_ids=(1, 3),
    mask_token_id=127,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
)


def test_a_small_published_model_reads_back_value_for_value(
    write_legacy: WriteLegacy, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Real bytes through the whole way, with the tables' rows in a small model's sizes."""
    tensors = [*_small_model()]
    objects = place(tensors)
    payload = bytearray(objects[-1]["offset"] + objects[-1]["bytes"])
    values: dict[str, np.ndarray] = {}
    generator = np.random.default_rng(7)
    for (name, shape, format_name), item in zip(tensors, objects[6:], strict=True):
        codec = codec_for(*_v3_names(format_name), shape)
        words = _words(generator, shape, format_name)
        encoded = codec.encode(words)
        payload[item["offset"] : item["offset"] + item["bytes"]] = bytes(encoded)
        values[name] = codec.decode(encoded)
    root = {"identity": {"model_id": "small", "weights_id": "w"}, "objects": objects}
    model = PublishedModel("small", "w", TINY, {}, {"dflash": TINY_DRAFT}, TINY_VISION)
    expected = _small_parameters(values)
    model = replace(model, bindings={len(objects): len(expected)})
    monkeypatch.setattr(identities, "PUBLISHED_MODELS", (model,))
    with open_legacy(write_legacy(root, bytes(payload))) as source:
        out = upgrade_artifact(source, tmp_path / "o.ninfer", published_table(source.directory))
    with open_artifact(out) as artifact:
        assert artifact.directory.bindings.keys() == expected.keys()
        for name, value in expected.items():
            found = artifact.decode_parameter(name, value.shape)
            np.testing.assert_array_equal(found, value, err_msg=name)
        assert artifact.directory.metadata == {"name": "small"}


def _v3_names(format_name: str) -> tuple[str, str]:
    return {
        "BF16": ("bf16", "contiguous_le_v1"),
        "FP32": ("fp32", "contiguous_le_v1"),
        "I32": ("int32", "contiguous_le_v1"),
        "W8G32_F16S": ("q8_g32_fp16", "row_split_k128_v1"),
    }[format_name]


def _words(generator: np.random.Generator, shape: tuple[int, ...], format_name: str) -> Any:
    if format_name == "W8G32_F16S":
        rows, columns = shape
        codes = generator.integers(-127, 128, shape, dtype=np.int8)
        scales = generator.integers(0x3000, 0x3C00, (rows, -(-columns // 32)), dtype=np.uint16)
        return GroupedWords(codes, scales)
    dtype = {"BF16": np.uint16, "FP32": np.uint32, "I32": np.int32}[format_name]
    return generator.integers(0x3000, 0x3F00, shape, dtype=dtype)


def _small_model() -> Any:
    yield "text/token_embedding", (128, 64), "W8G32_F16S"
    yield "text/output_head", (128, 64), "W8G32_F16S"
    yield "text/final_norm", (64,), "BF16"
    yield "text/draft_head", (40, 64), "W8G32_F16S"
    yield "text/draft_head_token_ids", (40,), "I32"
    for block in ("text/layers/0/", "text/layers/1/", "text/layers/2/"):
        yield from _small_ffn(block)
        if block.endswith("1/"):  # Both ways of packing.
            yield f"{block}gdn/query_key_value_z", (192, 64), "W8G32_F16S"
            yield f"{block}gdn/b_projection", (4, 64), "BF16"
            yield f"{block}gdn/a_projection", (4, 64), "BF16"
        else:
            yield f"{block}gdn/query_key", (64, 64), "W8G32_F16S"
            yield f"{block}gdn/value_z", (128, 64), "W8G32_F16S"
            yield f"{block}gdn/a_b_projection", (8, 64), "BF16"
        yield f"{block}gdn/a_log", (4,), "FP32"
        yield f"{block}gdn/dt_bias", (4,), "FP32"
        yield f"{block}gdn/norm", (16,), "BF16"
        yield f"{block}gdn/convolution", (4, 128), "BF16"
        yield f"{block}gdn/output", (64, 64), "W8G32_F16S"
    for block in ("text/layers/3/", "mtp/layer/"):
        yield from _small_ffn(block)
        if block.startswith("mtp"):
            yield f"{block}attention/query_key_gate_value", (192, 64), "W8G32_F16S"
        else:
            yield f"{block}attention/query_key", (96, 64), "W8G32_F16S"
            yield f"{block}attention/gate_value", (96, 64), "W8G32_F16S"
        yield f"{block}attention/query_norm", (32,), "BF16"
        yield f"{block}attention/key_norm", (32,), "BF16"
        yield f"{block}attention/output", (64, 64), "W8G32_F16S"
    yield "mtp/input_projection", (64, 128), "W8G32_F16S"
    for norm in ("embedding_norm", "hidden_norm", "final_norm"):
        yield f"mtp/{norm}", (64,), "BF16"
    yield "vision/patch_embedding", (32, 96), "BF16"
    yield "vision/patch_embedding_bias", (32,), "BF16"
    yield "vision/position_embedding", (16, 32), "BF16"
    block = "vision/layers/0/"
    yield f"{block}attention/qkv", (96, 32), "W8G32_F16S"
    yield f"{block}attention/qkv_bias", (96,), "BF16"
    for name, rows, columns in (
        ("attention/output", 32, 32),
        ("mlp/fc1", 48, 32),
        ("mlp/fc2", 32, 48),
    ):
        yield f"{block}{name}", (rows, columns), "W8G32_F16S"
        yield f"{block}{name}_bias", (rows,), "BF16"
    for norm in ("norm1/weight", "norm1/bias", "norm2/weight", "norm2/bias"):
        yield f"{block}{norm}", (32,), "BF16"
    for name, rows in (("fc1", 128), ("fc2", 64)):
        yield f"vision/merger/{name}", (rows, 128), "W8G32_F16S"
        yield f"vision/merger/{name}_bias", (rows,), "BF16"
    yield "vision/merger/norm/weight", (32,), "BF16"
    yield "vision/merger/norm/bias", (32,), "BF16"
    yield "dflash/feature_projection", (64, 128), "W8G32_F16S"
    yield "dflash/context_norm", (64,), "BF16"
    yield "dflash/final_norm", (64,), "BF16"
    block = "dflash/layers/0/"
    yield f"{block}input_norm", (64,), "BF16"
    yield f"{block}post_attention_norm", (64,), "BF16"
    yield f"{block}attention/query_key_value", (64, 64), "W8G32_F16S"
    yield f"{block}attention/query_norm", (8,), "BF16"
    yield f"{block}attention/key_norm", (8,), "BF16"
    yield f"{block}attention/output", (64, 32), "W8G32_F16S"
    yield f"{block}mlp/gate_up", (96, 64), "W8G32_F16S"
    yield f"{block}mlp/down", (64, 48), "W8G32_F16S"


def _small_ffn(block: str) -> Any:
    yield f"{block}input_norm", (64,), "BF16"
    yield f"{block}post_attention_norm", (64,), "BF16"
    yield f"{block}mlp/gate_up", (192, 64), "W8G32_F16S"
    yield f"{block}mlp/down", (64, 96), "W8G32_F16S"


SMALL_SPLITS = {
    "gdn/query_key": {"gdn/query": (0, 32), "gdn/key": (32, 64)},
    "gdn/value_z": {"gdn/value": (0, 64), "gdn/z": (64, 128)},
    "gdn/query_key_value_z": {
        "gdn/query": (0, 32),
        "gdn/key": (32, 64),
        "gdn/value": (64, 128),
        "gdn/z": (128, 192),
    },
    "attention/query_key": {"attention/query": (0, 64), "attention/key": (64, 96)},
    "attention/gate_value": {"attention/gate": (0, 64), "attention/value": (64, 96)},
    "gdn/a_b_projection": {"gdn/a_projection": (0, 4), "gdn/b_projection": (4, 8)},
    "attention/query_key_gate_value": {
        "attention/query": (0, 64),
        "attention/key": (64, 96),
        "attention/gate": (96, 160),
        "attention/value": (160, 192),
    },
    "attention/query_key_value": {
        "attention/query": (0, 32),
        "attention/key": (32, 48),
        "attention/value": (48, 64),
        "attention/context_key": (32, 48),
        "attention/context_value": (48, 64),
    },
    "attention/qkv": {
        "attention/query": (0, 32),
        "attention/key": (32, 64),
        "attention/value": (64, 96),
    },
    "attention/qkv_bias": {
        "attention/query_bias": (0, 32),
        "attention/key_bias": (32, 64),
        "attention/value_bias": (64, 96),
    },
}
SMALL_RENAMES = {
    "text/draft_head": "proposal/head",
    "text/draft_head_token_ids": "proposal/token_ids",
    "vision/merger/norm/weight": "vision/merger/norm_weight",
    "vision/merger/norm/bias": "vision/merger/norm_bias",
    **{
        f"vision/layers/0/{norm}/{part}": f"vision/layers/0/{norm}_{part}"
        for norm in ("norm1", "norm2")
        for part in ("weight", "bias")
    },
}


def _small_parameters(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What each parameter must hold, cut out of the objects' values by hand."""
    parameters: dict[str, np.ndarray] = {}
    for name, value in values.items():
        *block, group, role = name.split("/")
        prefix = "".join(f"{part}/" for part in block).replace("mtp/layer/", "mtp/layers/0/")
        half = value.shape[0] // 2
        splits = SMALL_SPLITS | {"mlp/gate_up": {"mlp/gate": (0, half), "mlp/up": (half, 2 * half)}}
        if f"{group}/{role}" in splits:
            for parameter, (begin, end) in splits[f"{group}/{role}"].items():
                parameters[prefix + parameter] = value[begin:end]
        else:
            renamed = SMALL_RENAMES.get(name, name)
            parameters[renamed.replace("mtp/layer/", "mtp/layers/0/")] = value
    return parameters
