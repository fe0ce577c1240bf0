"""Safetensors and GGUF through the same command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import GgufCheckpoint, SafetensorsCheckpoint

MEMBERS = [
    "schema",
    "ok",
    "path",
    "kind",
    "version",
    "name",
    "architecture",
    "files",
    "file_bytes",
    "payload_bytes",
    "tensors",
    "parameters",
    "bits_per_weight",
    "formats",
]


@pytest.mark.parametrize("name", ["", "model.safetensors"])
def test_safetensors(name: str, document: Any, inspect: Any, safetensors: Path) -> None:
    found = document(safetensors / name)
    assert list(found) == MEMBERS
    assert (found["kind"], found["version"]) == ("safetensors", None)
    assert found["architecture"] == "Qwen3_5ForConditionalGeneration"
    assert (found["tensors"], found["files"]) == (181, 1)
    assert found["parameters"] == 13_453_744
    assert found["file_bytes"] == (safetensors / "model.safetensors").stat().st_size
    assert found["formats"]["BF16"]["share"] > 0.999
    code, out, err = inspect(safetensors / name)
    assert (code, err) == (0, "")
    assert "Safetensors" in out
    assert "█" in out


def test_a_file_is_known_by_its_content(document: Any, safetensors: Path, tmp_path: Path) -> None:
    copy = tmp_path / "weights.bin"
    copy.write_bytes((safetensors / "model.safetensors").read_bytes())
    assert document(copy)["kind"] == "safetensors"


def test_an_index_file(document: Any, safetensors: Path, tmp_path: Path) -> None:
    content = (safetensors / "model.safetensors").read_bytes()
    (tmp_path / "one.safetensors").write_bytes(content)
    names = SafetensorsCheckpoint(safetensors).names
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "one.safetensors")}))
    assert document(index)["tensors"] == document(tmp_path)["tensors"] == 181


def test_gguf(document: Any, inspect: Any, gguf_file: Path) -> None:
    found = document(gguf_file)
    assert list(found) == MEMBERS
    assert (found["kind"], found["version"]) == ("gguf", 3)
    assert (found["name"], found["architecture"]) == ("tiny", "qwen35")
    assert found["formats"]["Q8_0"] == {
        "tensors": 1,
        "elements": 192,
        "bytes": 204,
        "share": round(204 / 224, 6),
    }
    assert found["parameters"] == 197
    out = inspect(gguf_file)[1]
    assert "GGUF, version 3" in out
    assert "Q8_0" in out


def test_tensors_are_listed(document: Any, inspect: Any, gguf_file: Path) -> None:
    checkpoint = GgufCheckpoint(gguf_file)
    found = document(gguf_file, "--objects", "--select", "*.attn_q.*")
    assert found["object_records"] == [
        {
            "name": "blk.0.attn_q.weight",
            "dtype": "Q8_0",
            "shape": [3, 64],
            "offset": checkpoint.info("blk.0.attn_q.weight").offset,
            "bytes": 204,
            "file": "model.gguf",
        }
    ]
    out = inspect(gguf_file, "--objects")[1]
    assert [line.split()[-1] for line in out.splitlines()[-2:]] == [
        "blk.0.attn_q.weight",
        "output_norm.weight",
    ]
    code, _, err = inspect(gguf_file, "--objects", "--select", "blk.1.*")
    assert code == 2
    assert "the nearest is blk.0.attn_q.weight" in err


def test_values_of_tensors(document: Any, gguf_file: Path, safetensors: Path) -> None:
    values = GgufCheckpoint(gguf_file).read("blk.0.attn_q.weight").reshape(3, 64)
    found = document(gguf_file, "--tensor", "blk.0.attn_q.weight", "--rows", "1:", "--cols", "2:5")
    assert found["tensor"]["kind"] == "tensor"
    assert found["tensor"]["formats"] == ["Q8_0"]
    assert np.array_equal(found["values"], values[1:, 2:5])
    name = "lm_head.weight"
    values = SafetensorsCheckpoint(safetensors).read(name).astype(np.float32).reshape(4096, 256)
    found = document(safetensors, "--tensor", name, "--rows", "4000:4002")
    assert np.array_equal(found["values"], values[4000:4002])
    found = document(safetensors, "--tensor", name)
    assert found["statistics"]["mean"] == pytest.approx(values.mean(dtype=np.float64), rel=1e-9)


def test_a_tensor_that_is_absent_names_the_nearest(inspect: Any, safetensors: Path) -> None:
    code, _, err = inspect(safetensors, "--tensor", "lm_head.wight")
    assert code == 3
    assert "did you mean lm_head.weight?" in err


def test_configuration_and_metadata(
    document: Any, inspect: Any, gguf_file: Path, safetensors: Path
) -> None:
    found = document(safetensors, "--config")
    assert found["config"] == json.loads((safetensors / "config.json").read_text())
    assert isinstance(found["metadata"], dict)
    found = document(gguf_file, "--config")
    assert found["metadata"]["general.architecture"] == "qwen35"
    assert len(found["metadata"]["tokenizer.ggml.tokens"]) == 100
    assert found["metadata"]["test.nan"] == "nan"
    shown = json.loads(inspect(gguf_file, "--config")[1])
    assert shown["metadata"]["tokenizer.ggml.tokens"][15:] == ["token 15", "... and 84 more"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bindings"], "only artifacts have --bindings"),
        (["--objects", "--uses", "--resources"], "only artifacts have --uses, --resources"),
        (["--verify"], "--verify is for .ninfer artifacts, not gguf"),
        (["--memory"], "--memory is for .ninfer artifacts, not gguf"),
        (["--resource", "x"], "--resource is for .ninfer artifacts, not gguf"),
        (["--diff", "x"], "--diff is for .ninfer artifacts, not gguf"),
    ],
)
def test_what_does_not_apply_says_so(
    arguments: list[str], message: str, inspect: Any, gguf_file: Path
) -> None:
    code, out, err = inspect(gguf_file, *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_a_checkpoint_cannot_be_compared_with(inspect: Any, gguf_file: Path, builtin: Path) -> None:
    code, _, err = inspect(builtin, "--diff", gguf_file)
    assert code == 2
    assert "--diff is for .ninfer artifacts, not gguf" in err


@pytest.mark.parametrize(
    "content",
    [
        b"GGUF",
        b"GGUF\3\0\0\0" + b"\xff" * 16,
        b"\xff" * 8 + b"{",
        b"\x10\0\0\0\0\0\0\0{}",
        b"",
    ],
)
@pytest.mark.parametrize("name", ["x.gguf", "x.safetensors"])
def test_damaged_files_are_refused(name: str, content: bytes, inspect: Any, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    code, out, err = inspect(path)
    assert (code, out) == (3, "")
    assert err.startswith(f"error: {path}: ")
