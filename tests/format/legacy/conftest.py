"""Version 1 and 2 files to read, and the inventories of the published models.

The inventories are written down from what is known of the published files (which parameters one
object holds, in which format), without the tables that they test.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ninfer_format import codec_for

Objects = list[dict[str, Any]]
Item = tuple[str, tuple[int, ...], str]
"""Name, shape and format of a tensor."""

V3_NAMES = {
    "BF16": ("bf16", "contiguous_le_v1", "contiguous-le-v1"),
    "FP32": ("fp32", "contiguous_le_v1", "contiguous-le-v1"),
    "I32": ("int32", "contiguous_le_v1", "contiguous-le-v1"),
    "Q4G64_F16S": ("q4_g64_fp16", "row_split_k128_v1", "row-split-k128-v1"),
    "Q5G64_F16S": ("q5_g64_fp16", "row_split_k128_v1", "row-split-k128-v1"),
    "Q6G64_F16S": ("q6_g64_fp16", "row_split_k128_v1", "row-split-k128-v1"),
    "W8G32_F16S": ("q8_g32_fp16", "row_split_k128_v1", "row-split-k128-v1"),
    "NVFP4": ("nvfp4", "block_scale_k16_m128x4_v1", "blockscale-k16-m128x4-v1"),
    "FP8_E4M3FN_ROW_BF16S": ("fp8_e4m3fn_row_bf16", "row_scale_v1", "row-scale-v1"),
}
ROLES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
SCALAR = "input_scale_divisor"


@pytest.fixture(scope="session")
def legacy(conformance: Path) -> Path:
    return conformance / "artifacts" / "legacy"


@pytest.fixture(scope="session")
def place() -> Callable[..., Objects]:
    """Make directory objects from resources (name, bytes) and tensors, one behind the other."""

    def run(tensors: Sequence[Item], resources: Mapping[str, int] | None = None) -> Objects:
        sizes = dict.fromkeys((f"frontend/{role}" for role in ROLES), 7)
        objects: Objects = []
        end = 0
        for name, num_bytes in (sizes if resources is None else resources).items():
            objects.append(
                {
                    "name": name,
                    "kind": "resource",
                    "encoding": "raw-bytes-v1",
                    "offset": end,
                    "bytes": num_bytes,
                }
            )
            end += num_bytes
        for name, shape, format_name in tensors:
            v3_format, v3_layout, layout = V3_NAMES[format_name]
            num_bytes = codec_for(v3_format, v3_layout, shape).geometry.num_bytes
            offset = -(-end // 256) * 256
            objects.append(
                {
                    "name": name,
                    "kind": "tensor",
                    "shape": list(shape),
                    "format": format_name,
                    "layout": layout,
                    "offset": offset,
                    "bytes": num_bytes,
                }
            )
            end = offset + num_bytes
        return objects

    return run


@pytest.fixture
def write_legacy(tmp_path: Path) -> Callable[..., Path]:
    """Write a version 1 or 2 file from its root value or JSON text and its payload."""

    def write(
        root: Any,
        payload: bytes = b"",
        *,
        version: int = 2,
        name: str = "old.ninfer",
        json_bytes: int | None = None,
    ) -> Path:
        text = root if isinstance(root, bytes) else json.dumps(root).encode()
        prefix = b"NINFER\0" + bytes([version])
        prefix += struct.pack("<Q", len(text) if json_bytes is None else json_bytes)
        start = -(-(16 + len(text)) // 4096) * 4096
        path = tmp_path / name
        path.write_bytes((prefix + text).ljust(start, b"\0") + payload)
        return path

    return write


# --- inventories of the published models -----------------------------------------------------


def _norms(block: str, hidden: int) -> Iterator[Item]:
    yield f"{block}input_norm", (hidden,), "BF16"
    yield f"{block}post_attention_norm", (hidden,), "BF16"


def _dense_layer(block: str, layer: int, weights: str) -> Iterator[Item]:
    """A layer of a 27B model; `layer` is 3 for the layer of multi-token prediction."""
    yield from _norms(block, 5120)
    output = "Q5G64_F16S" if weights == "groupwise-int" else weights
    if layer % 4 == 3:
        attention = f"{block}attention/"
        if weights == "groupwise-int":
            yield f"{attention}query_key", (7168, 5120), "Q4G64_F16S"
            yield f"{attention}gate_value", (7168, 5120), "Q5G64_F16S"
        else:
            yield f"{attention}query_key_gate_value", (14336, 5120), weights
        yield f"{attention}query_norm", (256,), "BF16"
        yield f"{attention}key_norm", (256,), "BF16"
        yield f"{attention}output", (5120, 6144), output
    else:
        gdn = f"{block}gdn/"
        if weights == "groupwise-int":
            yield f"{gdn}query_key", (4096, 5120), "Q4G64_F16S"
            yield f"{gdn}value_z", (12288, 5120), "Q5G64_F16S"
        else:
            yield f"{gdn}query_key_value_z", (16384, 5120), weights
        yield f"{gdn}a_log", (48,), "FP32"
        yield f"{gdn}dt_bias", (48,), "FP32"
        yield f"{gdn}convolution", (4, 10240), "BF16"
        yield f"{gdn}norm", (128,), "BF16"
        yield f"{gdn}output", (5120, 6144), output


def _controls(block: str, together: bool) -> Iterator[Item]:
    if together:
        yield f"{block}gdn/a_b_projection", (96, 5120), "BF16"
    else:
        yield f"{block}gdn/a_projection", (48, 5120), "BF16"
        yield f"{block}gdn/b_projection", (48, 5120), "BF16"


def _mlp(block: str, gate_up: str, down: str) -> Iterator[Item]:
    yield f"{block}mlp/gate_up", (34816, 5120), gate_up
    yield f"{block}mlp/down", (5120, 17408), down


def _roots(hidden: int, embedding: str, head: str) -> Iterator[Item]:
    yield "text/token_embedding", (248320, hidden), embedding
    yield "text/final_norm", (hidden,), "BF16"
    yield "text/output_head", (248320, hidden), head
    yield "text/draft_head", (131072, hidden), "Q4G64_F16S"
    yield "text/draft_head_token_ids", (131072,), "I32"


def _mtp_roots(hidden: int) -> Iterator[Item]:
    yield "mtp/input_projection", (hidden, 2 * hidden), "W8G32_F16S"
    for norm in ("embedding_norm", "hidden_norm", "final_norm"):
        yield f"mtp/{norm}", (hidden,), "BF16"


def _vision(hidden: int) -> Iterator[Item]:
    yield "vision/patch_embedding", (1152, 1536), "Q6G64_F16S"
    yield "vision/patch_embedding_bias", (1152,), "BF16"
    yield "vision/position_embedding", (2304, 1152), "BF16"
    for layer in range(27):
        block = f"vision/layers/{layer}/"
        yield f"{block}attention/qkv", (3456, 1152), "Q4G64_F16S"
        yield f"{block}attention/qkv_bias", (3456,), "BF16"
        yield f"{block}attention/output", (1152, 1152), "Q5G64_F16S"
        yield f"{block}attention/output_bias", (1152,), "BF16"
        yield f"{block}mlp/fc1", (4304, 1152), "Q4G64_F16S"
        yield f"{block}mlp/fc1_bias", (4304,), "BF16"
        yield f"{block}mlp/fc2", (1152, 4304), "Q5G64_F16S"
        yield f"{block}mlp/fc2_bias", (1152,), "BF16"
        for norm in ("norm1/weight", "norm1/bias", "norm2/weight", "norm2/bias"):
            yield f"{block}{norm}", (1152,), "BF16"
    yield "vision/merger/fc1", (4608, 4608), "W8G32_F16S"
    yield "vision/merger/fc1_bias", (4608,), "BF16"
    yield "vision/merger/fc2", (hidden, 4608), "W8G32_F16S"
    yield "vision/merger/fc2_bias", (hidden,), "BF16"
    yield "vision/merger/norm/weight", (1152,), "BF16"
    yield "vision/merger/norm/bias", (1152,), "BF16"


def _dense_mtp() -> Iterator[Item]:
    yield from _mtp_roots(5120)
    yield from _dense_layer("mtp/layer/", 3, "W8G32_F16S")
    yield from _mlp("mtp/layer/", "W8G32_F16S", "W8G32_F16S")


def _groupwise_27b() -> Iterator[Item]:
    yield from _roots(5120, "Q6G64_F16S", "Q6G64_F16S")
    for layer in range(64):
        block = f"text/layers/{layer}/"
        yield from _dense_layer(block, layer, "groupwise-int")
        if layer % 4 != 3:
            yield from _controls(block, together=False)
        yield from _mlp(block, "Q4G64_F16S", "Q5G64_F16S")
    yield from _dense_mtp()
    yield from _vision(5120)


def _nvfp4_36_27b() -> Iterator[Item]:
    """All projections NVFP4 but the inputs of the first six attentions and three outputs."""
    direct = {f"text/layers/{layer}/attention/query_key_gate_value" for layer in range(3, 24, 4)}
    direct |= {f"text/layers/{layer}/attention/output" for layer in (3, 7)}
    direct |= {"text/layers/4/gdn/output"}
    operations = {
        "query_key_gate_value": "input_projection",
        "query_key_value_z": "input_projection",
        "output": "output_projection",
        "gate_up": "gate_up_projection",
        "down": "down_projection",
    }
    yield from _roots(5120, "W8G32_F16S", "W8G32_F16S")
    for layer in range(64):
        block = f"text/layers/{layer}/"
        items = [*_dense_layer(block, layer, "NVFP4"), *_mlp(block, "NVFP4", "NVFP4")]
        for name, shape, format_name in items:
            yield name, shape, "BF16" if name in direct else format_name
            if format_name == "NVFP4" and name not in direct:
                group, _, role = name.rpartition("/")
                yield f"{group}/{operations[role]}/{SCALAR}", (), "FP32"
        if layer % 4 != 3:
            yield from _controls(block, together=False)
    yield from _dense_mtp()
    yield from _vision(5120)


def _nvfp4_38_27b() -> Iterator[Item]:
    """The first 56 feed-forward networks NVFP4, all other projections FP8."""
    fp8 = "FP8_E4M3FN_ROW_BF16S"
    yield from _roots(5120, fp8, fp8)
    for layer in range(64):
        block = f"text/layers/{layer}/"
        yield from _dense_layer(block, layer, fp8)
        if layer % 4 != 3:
            yield from _controls(block, together=True)
        mlp = "NVFP4" if layer < 56 else fp8
        yield from _mlp(block, mlp, mlp)
        if layer < 56:
            yield f"{block}mlp/gate_up_projection/{SCALAR}", (), "FP32"
            yield f"{block}mlp/down_projection/{SCALAR}", (), "FP32"
    yield from _dense_mtp()
    yield from _vision(5120)


def _dflash2() -> Iterator[Item]:
    yield "dflash2/feature_projection", (5120, 25600), "W8G32_F16S"
    yield "dflash2/context_norm", (5120,), "BF16"
    yield "dflash2/final_norm", (5120,), "BF16"
    yield "dflash2/candidate_selector/hidden_projection", (256, 5120), "BF16"
    yield "dflash2/candidate_selector/predecessor_codebook", (248320, 256), "BF16"
    yield "dflash2/candidate_selector/successor_codebook", (248320, 256), "BF16"
    for layer in range(5):
        block = f"dflash2/layers/{layer}/"
        yield from _draft_layer(block, 5120, 17408)
        for branch in ("attention_conv", "mlp_conv"):
            yield f"{block}{branch}/base_kernel", (2, 2, 5120), "BF16"
            yield f"{block}{branch}/kernel_projection", (1280, 5120), "BF16"


def _draft_layer(block: str, hidden: int, inner: int) -> Iterator[Item]:
    yield from _norms(block, hidden)
    yield f"{block}attention/query_key_value", (6144, hidden), "W8G32_F16S"
    yield f"{block}attention/query_norm", (128,), "BF16"
    yield f"{block}attention/key_norm", (128,), "BF16"
    yield f"{block}attention/output", (hidden, 4096), "W8G32_F16S"
    yield f"{block}mlp/gate_up", (2 * inner, hidden), "W8G32_F16S"
    yield f"{block}mlp/down", (hidden, inner), "W8G32_F16S"


def _moe_layer(block: str, layer: int, weights: str) -> Iterator[Item]:
    yield from _norms(block, 2048)
    if layer % 4 == 3:
        yield f"{block}attention/query_key_gate_value", (9216, 2048), weights
        yield f"{block}attention/query_norm", (256,), "BF16"
        yield f"{block}attention/key_norm", (256,), "BF16"
        yield f"{block}attention/output", (2048, 4096), weights
    else:
        yield f"{block}gdn/query_key_value_z", (12288, 2048), weights
        yield f"{block}gdn/a_b_projection", (64, 2048), "BF16"
        yield f"{block}gdn/a_log", (32,), "FP32"
        yield f"{block}gdn/dt_bias", (32,), "FP32"
        yield f"{block}gdn/convolution", (4, 8192), "BF16"
        yield f"{block}gdn/norm", (128,), "BF16"
        yield f"{block}gdn/output", (2048, 4096), weights
    yield f"{block}moe/router_shared_gate", (257, 2048), "BF16"
    yield f"{block}moe/routed_gate_up", (262144, 2048), "Q4G64_F16S"
    yield f"{block}moe/routed_down", (524288, 512), "Q5G64_F16S"
    yield f"{block}moe/shared_gate_up", (1024, 2048), "W8G32_F16S"
    yield f"{block}moe/shared_down", (2048, 512), "W8G32_F16S"


def _groupwise_35b() -> Iterator[Item]:
    yield from _roots(2048, "W8G32_F16S", "Q6G64_F16S")
    for layer in range(40):
        yield from _moe_layer(f"text/layers/{layer}/", layer, "W8G32_F16S")
    yield from _mtp_roots(2048)
    yield from _moe_layer("mtp/layer/", 3, "W8G32_F16S")
    yield from _vision(2048)
    yield "dflash/feature_projection", (2048, 16384), "W8G32_F16S"
    yield "dflash/context_norm", (2048,), "BF16"
    yield "dflash/final_norm", (2048,), "BF16"
    for layer in range(6):
        yield from _draft_layer(f"dflash/layers/{layer}/", 2048, 6144)


INVENTORIES: dict[str, Callable[[], list[Item]]] = {
    "qwen3.6-27b groupwise-int": lambda: [*_groupwise_27b()],
    "qwen3.6-27b nvfp4": lambda: [*_nvfp4_36_27b()],
    "qwen3.8-27b groupwise-int": lambda: [*_groupwise_27b()],
    "qwen3.8-27b groupwise-int dflash2": lambda: [*_groupwise_27b(), *_dflash2()],
    "qwen3.8-27b nvfp4": lambda: [*_nvfp4_38_27b()],
    "qwen3.8-27b nvfp4 dflash2": lambda: [*_nvfp4_38_27b(), *_dflash2()],
    "qwen3.6-35b-a3b groupwise-int": lambda: [*_groupwise_35b()],
}


@pytest.fixture(scope="session")
def published_root(place: Callable[..., Objects]) -> Callable[..., dict[str, Any]]:
    """The version 2 directory of a published model, as parsed JSON that a test may change."""

    def make(model: str, tensors: Sequence[Item] | None = None) -> dict[str, Any]:
        model_id, weights_id, *_ = model.split()
        return {
            "identity": {"model_id": model_id, "weights_id": weights_id},
            "objects": place(INVENTORIES[model]() if tensors is None else tensors),
        }

    return make


@pytest.fixture(scope="session")
def published_tensors() -> Callable[[str], list[Item]]:
    """The tensors of a published model, which a test may change."""
    return lambda model: INVENTORIES[model]()
