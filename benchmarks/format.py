"""Speed of the artifact format on one core: codecs, encoders and opening a large directory.

uv run python benchmarks/format.py
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ninfer_format import (
    Binding,
    Component,
    Part,
    TensorSpec,
    Use,
    codec_for,
    open_artifact,
    plan_artifact,
)
from ninfer_format.encoders.grouped_absmax import grouped_absmax

FORMATS = ("q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16")
REPETITIONS = 5


def fastest(action: Callable[[], object]) -> float:
    """Least time of the calling thread in seconds over some repetitions."""
    times = []
    for _ in range(REPETITIONS):
        begin = time.thread_time()
        action()
        times.append(time.thread_time() - begin)
    return min(times)


def quantize(values: NDArray[np.float32], name: str) -> NDArray[np.uint8]:
    """Quantize a matrix and pack it into the bytes of its object."""
    words = grouped_absmax(values, name)
    return codec_for(name, "row_split_k128_v1").encode(words, values.shape)


def measure_codecs() -> None:
    values = np.random.default_rng(0).standard_normal((1024, 4096)).astype(np.float32)
    print(f"{'format':<14}{'decode':>14}{'quantize+pack':>16}   (MB/s of encoded, of float32)")
    for name in FORMATS:
        codec = codec_for(name, "row_split_k128_v1")
        payload = quantize(values, name)

        decoding = payload.nbytes / fastest(partial(codec.decode, payload, values.shape)) / 1e6
        encoding = values.nbytes / fastest(partial(quantize, values, name)) / 1e6
        print(f"{name:<14}{decoding:>14.0f}{encoding:>16.0f}")


def write_large_directory(path: Path, num_bindings: int = 33_000) -> bytes:
    """Write an artifact of one object and many bindings; returns its JSON text."""
    width, hidden = 8, 16
    spec = TensorSpec("experts", (num_bindings * width, hidden), "bf16", "contiguous_le_v1")
    bindings, uses = {}, []
    for index in range(num_bindings):
        name = f"text/layers/{index // 768}/moe/experts/{index // 3 % 256}/{index % 3}"
        begin = index * width * hidden
        bindings[name] = Binding(parts=(Part("experts", begin, begin + width * hidden),))
        uses.append(Use(name, f"text/layers/{index // 768}/ffn_input", "A16Only"))
    plan = plan_artifact([spec], components={"text": Component({})}, bindings=bindings, uses=uses)
    header = b"NINFER\0\3" + len(plan.json_bytes).to_bytes(8, "little") + bytes(16)
    path.write_bytes(header + plan.json_bytes + bytes(plan.directory.payload_bytes))
    return plan.json_bytes


def measure_opening() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.ninfer"
        text = write_large_directory(path)
        parsing = fastest(lambda: json.loads(text))
        opening = fastest(lambda: open_artifact(path).close())
    print(
        f"directory of {len(text) / 1e6:.1f} MB: open {opening:.3f} s, json.loads {parsing:.3f} s"
    )


if __name__ == "__main__":
    measure_codecs()
    measure_opening()
