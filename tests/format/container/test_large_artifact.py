"""40 GB in two files: opening it and reading far objects takes little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import codec_for

ROWS, COLUMNS = 9_200_000, 4096
BIG = codec_for("q8_g32_fp16", "row_split_k128_v1", (ROWS, COLUMNS)).geometry
FAR = np.arange(1000, dtype="<i4")
ARTIFACT_ID = bytes(range(16))

SCRIPT = """
import sys
import numpy as np
from ninfer_format import open_artifact
with open_artifact(sys.argv[1]) as artifact:
    assert np.array_equal(artifact.decode_object("far"), np.arange(1000))
    assert artifact.read_object("far").size == 4000
    # The last row of an object that begins in the other file.
    assert artifact.read_rows("text/big", (9_199_999, 9_200_000)).sum() == 3 * 0.5 * 4096
    assert artifact.read_rows("text/big", np.array([0, 4_000_000])).sum() == 0
    assert artifact.read_columns("text/end", 5, 6, (10, 4096)).tolist() == [[1.5]] * 10
    buffer = bytearray(1000)
    artifact.read_into(20_000_000_000, buffer)
    assert not any(buffer)
    # getrusage would count the memory of the process that started this one.
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(artifact.payload_bytes, int(peak.split()[1]) * 1024)
"""


def write_at(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


@pytest.fixture
def sparse_artifact(tmp_path: Path) -> Path:
    """Two files of holes with a few bytes at their ends."""
    far_offset = -(-BIG.num_bytes // 256) * 256
    payload_bytes = far_offset + FAR.nbytes
    first = 20_000_000_000
    record: dict[str, Any] = {"kind": "tensor", "id": "big", "shape": [ROWS, COLUMNS]}
    record |= {"format": "q8_g32_fp16", "layout": "row_split_k128_v1"}
    record |= {"offset": 0, "bytes": BIG.num_bytes}
    far: dict[str, Any] = {"kind": "tensor", "id": "far", "shape": [1000], "format": "int32"}
    far |= {"layout": "contiguous_le_v1", "offset": far_offset, "bytes": FAR.nbytes}
    last_rows = [(ROWS - 10) * COLUMNS, ROWS * COLUMNS]
    directory = {
        "components": {"text": {"config": {}}},
        "objects": [record, far],
        "bindings": {
            "text/big": {"object": "big"},
            "text/end": {"parts": [{"object": "big", "range": last_rows}]},
        },
        "uses": [],
        "files": [
            {"path": None, "payload_bytes": first},
            {"path": "rest", "payload_bytes": payload_bytes - first},
        ],
    }
    text = json.dumps(directory).encode().ljust(4064)
    entry, part = tmp_path / "m.ninfer", tmp_path / "rest"
    entry.write_bytes(b"NINFER\0\3" + len(text).to_bytes(8, "little") + ARTIFACT_ID + text)
    part.write_bytes(b"NINPRT\0\3" + (1).to_bytes(8, "little") + ARTIFACT_ID)
    write_at(entry, 4096 + first - 1, b"\0")
    shift = 4096 - first
    codes, scales = BIG.planes["base"], BIG.planes["scale"]
    write_at(part, shift + codes.end - 10 * COLUMNS, bytes([3]) * (10 * COLUMNS))
    write_at(part, shift + scales.end - 10 * COLUMNS // 16, np.full(1280, 0.5, "<f2").tobytes())
    write_at(part, shift + far_offset, FAR.tobytes())
    return entry


def test_far_objects_are_read_in_little_memory(sparse_artifact: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(sparse_artifact)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    payload_bytes, peak_bytes = map(int, result.stdout.split())
    assert payload_bytes > 40_000_000_000
    assert peak_bytes < 100_000_000
