from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ninfer_format.cli import main
from ninfer_runtime import builtin_model

Inspect = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def all_formats(conformance: Path) -> Path:
    return conformance / "artifacts/all_formats/all_formats.ninfer"


@pytest.fixture(scope="session")
def builtin() -> Path:
    return builtin_model.path()


@pytest.fixture(scope="session")
def safetensors(data: Path) -> Path:
    return data / "tiny-model/checkpoint"


@pytest.fixture(scope="session")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tensors, one of them quantized, and metadata of several types."""
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    writer = gguf.GGUFWriter(path, "qwen35")
    writer.add_name("tiny")
    writer.add_float32("test.nan", float("nan"))
    writer.add_array("tokenizer.ggml.tokens", [f"token {index}" for index in range(100)])
    values = np.linspace(-1, 1, 3 * 64, dtype=np.float32).reshape(3, 64)
    Q8_0 = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("blk.0.attn_q.weight", gguf.quantize(values, Q8_0), raw_dtype=Q8_0)
    writer.add_tensor("output_norm.weight", np.arange(5, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Inspect:
    """Run the command in this process: exit code, stdout and stderr; without progress."""

    def run(*arguments: object, progress: str = "off") -> tuple[int, str, str]:
        words = [*map(str, arguments), "--progress", progress]
        monkeypatch.setattr(sys, "argv", ["ninfer-inspect", *words])
        with pytest.raises(SystemExit) as raised:
            main()
        captured = capsys.readouterr()
        return int(raised.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def document(inspect: Inspect) -> Callable[..., dict[str, Any]]:
    """Run the command with ``--json``: its document, which is all that it prints."""

    def run(*arguments: object, code: int = 0) -> dict[str, Any]:
        found, out, err = inspect(*arguments, "--json")
        assert found == code, err
        assert out.endswith("}\n")
        result: dict[str, Any] = json.loads(out)
        assert list(result)[:2] == ["schema", "ok"]
        assert result["schema"] == "ninfer-inspect/1"
        if code == 0:
            assert err == ""
            assert result["ok"] is True
        return result

    return run
