"""GGUF files: names, the changes that their converter makes, words and dequantized values.

The file is made as llama.cpp's converter makes it: one is added to the norms, the decay is stored as
``-exp(A_log)``, value heads go from groups by key head to tiles.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest

from ninfer_format import Artifact, CheckpointError, GroupedWords, open_artifact
from ninfer_quant.pipeline.conversion import Conversion

from .conftest import TEXT, Tensors, tensor_record

KEY_HEADS, VALUE_HEADS, HEAD = 2, 4, 128
LAYERS = 8

FROM_GGUF = """
def configure(model, recipe, sources):
    for name in model.parameters:
        recipe.assign(name, source=model.source(name, sources["gguf"]))
"""

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
ROOTS = {
    f"{TEXT}embed_tokens.weight": "token_embd.weight",
    f"{TEXT}norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "mtp.fc.weight": f"blk.{LAYERS}.nextn.eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": f"blk.{LAYERS}.nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": f"blk.{LAYERS}.nextn.hnorm.weight",
    "mtp.norm.weight": f"blk.{LAYERS}.nextn.shared_head_norm.weight",
}
VISION = {
    "patch_embed.proj.bias": "v.patch_embd.bias",
    "pos_embed.weight": "v.position_embd.weight",
    "merger.norm": "v.post_ln",
    "merger.linear_fc1": "mm.0",
    "merger.linear_fc2": "mm.2",
}
VISION_BLOCK = {
    "norm1": "ln1",
    "norm2": "ln2",
    "attn.qkv": "attn_qkv",
    "attn.proj": "attn_out",
    "mlp.linear_fc1": "ffn_up",
    "mlp.linear_fc2": "ffn_down",
}


def to_tiles(array: np.ndarray, axis: int, length: int) -> np.ndarray:
    """Value heads from groups by key head to tiles, along one axis with `length` per head."""
    moved = np.moveaxis(array, axis, 0)
    heads = moved.reshape(KEY_HEADS, VALUE_HEADS // KEY_HEADS, length, *moved.shape[1:])
    return np.moveaxis(heads.swapaxes(0, 1).reshape(moved.shape), 0, axis)


def gguf_tensor(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """Name and values in the file."""
    array = array.astype(np.float32)
    # The converter renames the norms of the MTP layer (enorm, hnorm) before it looks for norms.
    is_norm = (ROOTS.get(name) or name).endswith("norm.weight")
    if is_norm and not name.endswith("linear_attn.norm.weight"):
        array = array + 1
    if name in ROOTS:
        return ROOTS[name], array
    if name.startswith("mtp.layers.0."):
        rest, block = name.removeprefix("mtp.layers.0."), LAYERS
    else:
        block_text, _, rest = name.removeprefix(f"{TEXT}layers.").partition(".")
        block = int(block_text)
    if rest == "linear_attn.A_log":
        return f"blk.{block}.ssm_a", to_tiles(-np.exp(array), 0, 1)
    if rest == "linear_attn.dt_bias":
        return f"blk.{block}.ssm_dt.bias", to_tiles(array, 0, 1)
    module = rest.removesuffix(".weight")
    first = 2 * KEY_HEADS * HEAD
    if module in ("linear_attn.in_proj_qkv", "linear_attn.conv1d"):
        array = array.squeeze()
        array = np.concatenate([array[:first], to_tiles(array[first:], 0, HEAD)])
    elif module == "linear_attn.in_proj_z":
        array = to_tiles(array, 0, HEAD)
    elif module in ("linear_attn.in_proj_a", "linear_attn.in_proj_b"):
        array = to_tiles(array, 0, 1)
    elif module == "linear_attn.out_proj":
        array = to_tiles(array, 1, HEAD)
    return f"blk.{block}.{NAMES[module]}.weight", array


def vision_tensors(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    rest = name.removeprefix("model.visual.")
    array = array.astype(np.float32)
    if rest == "patch_embed.proj.weight":
        return {
            "v.patch_embd.weight": array[:, :, 0],
            "v.patch_embd.weight.1": array[:, :, 1],
        }
    if rest in VISION:
        return {VISION[rest]: array}
    module, _, part = rest.rpartition(".")
    if module in VISION:
        return {f"{VISION[module]}.{part}": array}
    _, block, module = module.split(".", 2)
    return {f"v.blk.{block}.{VISION_BLOCK[module]}.{part}": array}


def in_gguf(tensors: Tensors) -> dict[str, np.ndarray]:
    """The whole tiny model as llama.cpp's converter would name and change it, in float32."""
    content: dict[str, np.ndarray] = {}
    for name, array in tensors.items():
        if name.startswith("model.visual."):
            content |= vision_tensors(name, array)
        else:
            content |= [gguf_tensor(name, array)]
    return content


def write_gguf(
    path: Path,
    content: dict[str, np.ndarray],
    types: dict[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    writer = gguf.GGUFWriter(path, "qwen35")
    for name, array in content.items():
        type_ = (types or {}).get(name)
        if type_ is None:
            writer.add_tensor(name, np.ascontiguousarray(array))
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def float_file(tensors: Tensors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", in_gguf(tensors))


@pytest.fixture
def no_weights(model_folder: Callable[..., Path], tmp_path: Path) -> Path:
    return model_folder(tmp_path / "model", None)


def test_a_file_gives_the_model_that_it_was_made_from(
    float_file: Path, direct: Path, no_weights: Path, convert_with: Callable[..., Path]
):
    path = convert_with(
        FROM_GGUF, {"gguf": float_file}, model=no_weights, components=("text", "vision", "mtp")
    )
    with open_artifact(direct) as expected, open_artifact(path) as found:
        for name in expected.directory.bindings:
            # The decay goes through exp and log; one is added to norms and taken off again.
            loose = name.endswith(("a_log", "_norm", "final_norm"))
            np.testing.assert_allclose(
                found.decode_parameter(name).reshape(-1),
                expected.decode_parameter(name).reshape(-1),
                rtol=1e-6 if name.endswith("a_log") else 0,
                atol=2e-7 if loose else 0,
                err_msg=name,
            )


def test_a_file_without_a_head_gives_a_model_whose_head_is_its_table(
    tensors: Tensors, no_weights: Path, convert_with: Callable[..., Path], tmp_path: Path
):
    content = in_gguf(tensors)
    del content["output.weight"]
    config_path = no_weights / "config.json"
    config = json.loads(config_path.read_bytes())
    config["text_config"]["tie_word_embeddings"] = config["tie_word_embeddings"] = True
    config_path.write_text(json.dumps(config))
    file = write_gguf(tmp_path / "tied.gguf", content)
    recipe = f"{FROM_GGUF}    recipe.share('text/output_head', 'text/token_embedding')\n"
    path = convert_with(recipe, {"gguf": file}, model=no_weights, components=("text",))
    with open_artifact(path) as artifact:
        head, table = map(artifact.parts, ("text/output_head", "text/token_embedding"))
        assert head == table
        values = artifact.decode_parameter("text/output_head", (4096, 256))
    np.testing.assert_array_equal(values, content["token_embd.weight"])


def test_quantized_tensors_run_as_their_dequantized_values(
    tensors: Tensors,
    no_weights: Path,
    checkpoint: Path,
    convert_with: Callable[..., Path],
    logits: Callable[[Path], np.ndarray],
    reference_logits: Callable[..., np.ndarray],
    tmp_path: Path,
):
    content = in_gguf(tensors)
    q8 = gguf.GGMLQuantizationType.Q8_0
    types = {"blk.3.attn_q.weight": q8, "blk.0.attn_qkv.weight": q8, "blk.0.ssm_out.weight": q8}
    file = write_gguf(tmp_path / "q8.gguf", content, types)
    recipe = (
        "def configure(model, recipe, sources):\n"
        "    for name in model.parameters:\n"
        "        recipe.assign(name, source=model.source(name, sources['gguf']))\n"
        "    names = ['text/layers/3/attention/gate', 'text/layers/0/gdn/value',\n"
        "             'text/layers/0/gdn/output']\n"
        "    recipe.assign(names, format='fp32')\n"
    )
    path = convert_with(recipe, {"gguf": file}, model=no_weights)

    def rounded(name: str) -> np.ndarray:
        """Q8_0 by its definition: blocks of 32 with a float16 scale."""
        blocks = content[name].reshape(-1, 32)
        scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
        inverse = np.where(scale == 0, 0, 1 / np.where(scale == 0, 1, scale))
        stepped = blocks * inverse
        codes = np.trunc(stepped + np.copysign(np.float32(0.5), stepped))
        values: np.ndarray = codes * scale.astype(np.float16).astype(np.float32)
        return values.reshape(content[name].shape)

    def from_tiles(array: np.ndarray, axis: int) -> np.ndarray:
        """The inverse of `to_tiles`, which for two groups of two heads is itself."""
        return to_tiles(array, axis, HEAD)

    query_gate = rounded("blk.3.attn_q.weight").reshape(2, 2, 256, 256)
    values = {
        "text/layers/3/attention/gate": query_gate[:, 1].reshape(512, 256),
        "text/layers/3/attention/query": query_gate[:, 0].reshape(512, 256),
        "text/layers/0/gdn/value": from_tiles(rounded("blk.0.attn_qkv.weight")[512:], 0),
        "text/layers/0/gdn/query": rounded("blk.0.attn_qkv.weight")[:256],
        "text/layers/0/gdn/key": rounded("blk.0.attn_qkv.weight")[256:512],
        "text/layers/0/gdn/output": from_tiles(rounded("blk.0.ssm_out.weight"), 1),
    }
    for name in values:
        if name.endswith(("query", "key")):
            values[name] = values[name].astype(ml_dtypes.bfloat16).astype(np.float32)
    with open_artifact(path) as artifact:
        for name, expected in values.items():
            found = artifact.decode_parameter(name, expected.shape)
            np.testing.assert_allclose(found, expected, rtol=0, atol=0, err_msg=name)
    np.testing.assert_allclose(logits(path), reference_logits(values), rtol=0, atol=1e-3)


IMPORT_WORDS = """
def configure(model, recipe, sources):
    for name in model.parameters:
        source = model.source(name, sources["gguf"])
        recipe.assign(name, source=source)
        if source.encoded is not None:
            recipe.assign(name, format="q8_g32_fp16", method="import_encoded")
"""


def q8_0_words(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales of Q8_0 by its definition: blocks of 32 with a float16 scale."""
    blocks = array.reshape(len(array), -1, 32)
    scale = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(127)
    stepped = blocks * np.where(scale == 0, 0, 1 / np.where(scale == 0, 1, scale))
    codes = np.trunc(stepped + np.copysign(np.float32(0.5), stepped)).astype(np.int8)
    return codes.reshape(array.shape), scale[:, :, 0].astype(np.float16)


def test_q8_0_codes_are_imported_unchanged_and_run(
    tensors: Tensors,
    no_weights: Path,
    convert_with: Callable[..., Path],
    logits: Callable[[Path], np.ndarray],
    reference_logits: Callable[..., np.ndarray],
    tmp_path: Path,
):
    """All matrices of the text model; those of the checks have rows or columns in another order."""
    content = in_gguf(tensors)
    types = {
        name: gguf.GGMLQuantizationType.Q8_0
        for name, array in content.items()
        if array.ndim == 2 and "conv" not in name and not name.startswith(("v.", "mm."))
    }
    file = write_gguf(tmp_path / "q8.gguf", content, types)
    path = convert_with(IMPORT_WORDS, {"gguf": file}, model=no_weights)
    # Rows of the file, and blocks of 32 columns, of what is checked.
    heads = np.array([0, 2, 1, 3])
    rows = np.arange(1024).reshape(2, 2, 256)
    value_rows = 512 + (heads[:, np.newaxis] * HEAD + np.arange(HEAD)).reshape(-1)
    columns = (heads[:, np.newaxis] * HEAD + np.arange(HEAD)).reshape(-1)
    everything = slice(None)
    checked: dict[str, tuple[str, Any, Any]] = {
        "text/layers/3/attention/gate": ("blk.3.attn_q", rows[:, 1].reshape(-1), everything),
        "text/layers/0/gdn/value": ("blk.0.attn_qkv", value_rows, everything),
        "text/layers/0/gdn/output": ("blk.0.ssm_out", everything, columns),
        "text/layers/5/mlp/down": ("blk.5.ffn_down", everything, everything),
        "text/token_embedding": ("token_embd", everything, everything),
        "text/output_head": ("output", everything, everything),
    }
    values = {}
    with open_artifact(path) as artifact:
        for name, (stored, picked_rows, picked_columns) in checked.items():
            codes, scales = q8_0_words(content[f"{stored}.weight"])
            codes = codes[picked_rows][:, picked_columns]
            scales = np.repeat(scales, 32, axis=1)[picked_rows][:, picked_columns]
            record = tensor_record(artifact, artifact.parts(name)[0].object)
            assert record.format == "q8_g32_fp16", name
            found_codes, found_scales = words_of(artifact, name)
            np.testing.assert_array_equal(found_codes, codes, err_msg=name)
            np.testing.assert_array_equal(found_scales, scales[:, ::32], err_msg=name)
            values[name] = codes * scales.astype(np.float32)
        quantized = {
            name
            for name in artifact.directory.bindings
            if tensor_record(artifact, artifact.parts(name)[0].object).format == "q8_g32_fp16"
        }
        values |= {name: artifact.decode_parameter(name) for name in quantized - values.keys()}
    assert len(quantized) > 60
    np.testing.assert_allclose(logits(path), reference_logits(values), rtol=0, atol=1e-3)


def words_of(artifact: Artifact, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales of a parameter, whose rows may be some of an object's."""
    (part,) = artifact.parts(name)
    words = artifact.words(part.object)
    assert isinstance(words, GroupedWords)
    K = words.codes.shape[1]
    rows = slice(part.begin // K, part.end // K)
    return words.codes[rows], words.scales[rows].view(np.float16)


def q4_k(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of Q4_K and what they mean, by its definition.

    A block is 256 values: 8 groups with a 6-bit scale and minimum each, and 4-bit codes.
    """
    groups = array.reshape(-1, 8, 32).astype(np.float32)
    lowest = np.minimum(groups.min(axis=2), 0)
    step = (groups.max(axis=2) - lowest) / 15
    d = (step.max(axis=1) / 63).astype(np.float16)
    dmin = (-lowest.min(axis=1) / 63).astype(np.float16)
    scales = np.rint(step / d.astype(np.float32)[:, np.newaxis]).clip(0, 63).astype(np.uint8)
    minima = np.rint(-lowest / dmin.astype(np.float32)[:, np.newaxis]).clip(0, 63)
    minima = minima.astype(np.uint8)
    width = (d.astype(np.float32)[:, np.newaxis] * scales)[:, :, np.newaxis]
    base = (dmin.astype(np.float32)[:, np.newaxis] * minima)[:, :, np.newaxis]
    codes = np.rint((groups + base) / np.where(width == 0, 1, width)).clip(0, 15).astype(np.uint8)
    low = np.concatenate(
        [scales[:, :4] | (scales[:, 4:] >> 4) << 6, minima[:, :4] | (minima[:, 4:] >> 4) << 6],
        axis=1,
    )
    packed_scales = np.concatenate([low, scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4], axis=1)
    packed_codes = (codes[:, ::2] | codes[:, 1::2] << 4).reshape(len(codes), 128)
    halves = (d[:, np.newaxis].view(np.uint8), dmin[:, np.newaxis].view(np.uint8))
    raw = np.concatenate([*halves, packed_scales, packed_codes], axis=1)
    values: np.ndarray = width * codes - base
    return raw.reshape(len(array), -1), values.reshape(array.shape)


def test_q4_k_codes_are_read_unchanged_and_run(
    tensors: Tensors,
    no_weights: Path,
    convert_with: Callable[..., Path],
    logits: Callable[[Path], np.ndarray],
    reference_logits: Callable[..., np.ndarray],
    tmp_path: Path,
):
    """No format of ours has groups with a minimum, so what the codes mean is stored, exactly."""
    content = in_gguf(tensors)
    expected = {}
    writer = gguf.GGUFWriter(tmp_path / "q4.gguf", "qwen35")
    for name, array in content.items():
        role = name.split(".")[-2]
        if role in ("ffn_gate", "ffn_up", "ffn_down") and not name.startswith("v."):
            raw, values = q4_k(array)
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.Q4_K)
            layer = int(name.split(".")[1])
            if layer < LAYERS:
                expected[f"text/layers/{layer}/mlp/{role.removeprefix('ffn_')}"] = values
        else:
            writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    recipe = f"{FROM_GGUF}    recipe.assign('text/layers/*/mlp/*', format='fp32')\n"
    path = convert_with(recipe, {"gguf": tmp_path / "q4.gguf"}, model=no_weights)
    with open_artifact(path) as artifact:
        for name, values in expected.items():
            found = artifact.decode_parameter(name, values.shape)
            np.testing.assert_allclose(found, values, rtol=1e-6, atol=1e-9, err_msg=name)
    assert len(expected) == 3 * LAYERS
    np.testing.assert_allclose(logits(path), reference_logits(expected), rtol=0, atol=1e-3)


def test_a_tensor_that_the_file_lacks_is_named(
    tensors: Tensors, no_weights: Path, plan: Callable[..., Conversion], tmp_path: Path
):
    content = in_gguf(tensors)
    del content["blk.2.ssm_out.weight"]
    file = write_gguf(tmp_path / "part.gguf", content)
    with pytest.raises(CheckpointError) as caught:
        plan(FROM_GGUF, {"gguf": file}, model=no_weights)
    assert caught.value.tensors == (f"{TEXT}layers.2.linear_attn.out_proj.weight",)


def test_another_geometry_is_refused(
    tensors: Tensors, no_weights: Path, plan: Callable[..., Conversion], tmp_path: Path
):
    content = in_gguf(tensors)
    content["blk.0.attn_gate.weight"] = np.zeros((384, 256), np.float32)
    file = write_gguf(tmp_path / "other.gguf", content)
    with pytest.raises(CheckpointError, match=r"\[384, 256\], expected 512"):
        plan(FROM_GGUF, {"gguf": file}, model=no_weights)


def test_a_decay_that_is_not_negative_is_refused(
    tensors: Tensors, no_weights: Path, convert_with: Callable[..., Path], tmp_path: Path
):
    content = in_gguf(tensors)
    content["blk.0.ssm_a"] = -content["blk.0.ssm_a"]
    file = write_gguf(tmp_path / "positive.gguf", content)
    with pytest.raises(CheckpointError, match="is no decay"):
        convert_with(FROM_GGUF, {"gguf": file}, model=no_weights)
