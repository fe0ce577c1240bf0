"""Signals while a command copies."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ninfer_format import (
    Component,
    TensorSpec,
    plan_artifact,
)
from ninfer_format.container.framing import ENTRY_MAGIC, pack_header

Convert = Callable[..., tuple[int, str, str]]
Edits = dict[str, list[object]]

TOKENIZER = b'{"tokens": []}'
EDITS = ["policy", "template", "resource", "rename", "split", "attach"]


def present(folder: Path) -> dict[str, bytes]:
    """All files of a folder with their contents."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write_sparse(path: Path, elements: int) -> Path:
    """An artifact with one huge tensor of zeros that takes no room on the disk."""
    plan = plan_artifact(
        [TensorSpec("w", (elements,), "bf16", "contiguous_le_v1")],
        components={"text": Component({})},
        bindings={},
        entry_name=path.name,
        max_file_bytes=2**60,
    )
    with path.open("wb") as file:
        file.write(pack_header(ENTRY_MAGIC, len(plan.json_bytes), bytes(range(16))))
        file.write(plan.json_bytes)
        file.truncate(plan.file_bytes)
    return path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_copying_leaves_nothing(tmp_path: Path, number: signal.Signals):
    source = write_sparse(tmp_path / "in.ninfer", 2**33)
    out = tmp_path / "out" / "o.ninfer"
    free: Any = shutil.disk_usage(tmp_path).free
    if free < 2**34 + 2**30:
        source = write_sparse(tmp_path / "in.ninfer", free // 4)
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from ninfer_quant.cli.convert import main; main()",
            *("split", str(source), str(out), "--max-file-bytes", "1TiB"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("out/.o.ninfer.*/.o.ninfer.*")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number, stderr
    assert stdout == ""
    assert "Traceback" not in stderr
    assert stderr.rstrip().endswith("interrupted")
    assert not out.parent.exists()
