"""Speed of the artifact format: codecs and encoders on one core, reading, writing and opening.

    python benchmarks/format.py [--json] [--folder DIR]

Every line is a ratio to what is required of it, or to what the same run needs for the same bytes
without this package. The exit status is 1 if a requirement is not met. `--folder` is where files of
about 0.6 GB are written and removed. Unset OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Column, Table

from ninfer_format import (
    ArtifactWriter,
    Binding,
    Component,
    GroupedWords,
    Part,
    TensorSpec,
    Use,
    codec_for,
    fp8_row_maxabs,
    grouped_absmax,
    nvfp4_absmax,
    open_artifact,
    plan_artifact,
    q4_rows_maxabs,
)

REPETITIONS = 7
SHAPE = (1024, 4096)
LAYOUTS = {
    "q4_g64_fp16": "row_split_k128_v1",
    "q5_g64_fp16": "row_split_k128_v1",
    "q6_g64_fp16": "row_split_k128_v1",
    "q8_g32_fp16": "row_split_k128_v1",
    "nvfp4": "block_scale_k16_m128x4_v1",
    "fp8_e4m3fn_row_bf16": "row_scale_v1",
    "q4_g32_fp16_rows": "row_group_v1",
}
ENCODERS: dict[str, Callable[[NDArray[Any]], Any]] = {
    "nvfp4": nvfp4_absmax,
    "fp8_e4m3fn_row_bf16": fp8_row_maxabs,
    "q4_g32_fp16_rows": q4_rows_maxabs,
}
PAYLOAD_BYTES = 512 * 2**20
OBJECT_BYTES = 16 * 2**20
NUM_BINDINGS = 33_000


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number and what is required of it.

    Attributes:
        subject: What was measured.
        value: The number.
        unit: Its unit.
        required: The least value, or the largest if `is_limit`; None if none is required.
        is_limit: Whether smaller is better.
    """

    subject: str
    value: float
    unit: str
    required: float | None = None
    is_limit: bool = False

    @property
    def ratio(self) -> float | None:
        """How many times better than required."""
        if self.required is None:
            return None
        return self.required / self.value if self.is_limit else self.value / self.required

    @property
    def is_met(self) -> bool:
        """Whether the requirement is met, if there is one."""
        return self.ratio is None or self.ratio >= 1


def fastest(
    *actions: Callable[[], object], clock: Callable[[], float] = time.thread_time
) -> list[float]:
    """Least seconds of each action over some repetitions, which take turns."""
    least = [float("inf")] * len(actions)
    for _ in range(REPETITIONS):
        for index, action in enumerate(actions):
            begin = clock()
            action()
            least[index] = min(least[index], clock() - begin)
    return least


def measure_codecs() -> Iterator[Measurement]:
    """Decode to float32 and encode from it, in the time of one thread."""
    values = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    for name, layout in LAYOUTS.items():
        codec = codec_for(name, layout, SHAPE)
        encoder = ENCODERS.get(name, partial(grouped_absmax, format=name))
        words = encoder(values)
        payload = codec.encode(words)
        quantize, pack, unpack, decode, verify = fastest(
            partial(encoder, values),
            partial(codec.encode, words),
            partial(codec.decode_words, payload),
            partial(codec.decode, payload),
            partial(codec.verify, payload),
        )
        encoded, source = payload.nbytes / 1e6, values.nbytes / 1e6
        required = None if name == "q4_g32_fp16_rows" else 150
        yield Measurement(f"{name} decode", encoded / decode, "MB/s", required)
        yield Measurement(f"{name} read words", encoded / unpack, "MB/s")
        yield Measurement(f"{name} verify", encoded / verify, "MB/s")
        yield Measurement(f"{name} pack words", encoded / pack, "MB/s")
        required = 100 if encoder is not ENCODERS.get(name) else None
        yield Measurement(f"{name} quantize", source / quantize, "MB/s", required)


def measure_zero_groups() -> Iterator[Measurement]:
    """Checking groups under zero scales, each of which needs zero codes."""
    codec = codec_for("q4_g64_fp16", LAYOUTS["q4_g64_fp16"], SHAPE)
    codes = np.zeros(SHAPE, np.int8)
    zero, others = (
        GroupedWords(codes, np.full((SHAPE[0], SHAPE[1] // 64), scale, np.uint16))
        for scale in (0, 0x3C00)
    )
    slow, fast = fastest(partial(codec.validate, zero), partial(codec.validate, others))
    yield Measurement("checking zero groups / other groups", 100 * fast / slow, "%", 7)


def measure_files(folder: Path) -> Iterator[Measurement]:
    """Writing and reading an artifact of some hundred megabytes against plain system calls."""
    names = [f"w{index}" for index in range(PAYLOAD_BYTES // OBJECT_BYTES)]
    specs = [TensorSpec(name, (OBJECT_BYTES // 4,), "fp32", "contiguous_le_v1") for name in names]
    plan = plan_artifact(specs, components={"text": Component({})}, bindings={})
    data = np.random.default_rng(0).integers(0, 256, OBJECT_BYTES, np.uint8)
    path, plain = folder / "model.ninfer", folder / "plain"

    def write_artifact() -> None:
        path.unlink(missing_ok=True)
        with ArtifactWriter(path, plan) as writer:
            for name in names:
                writer.write(name, 0, data)

    def write_plain() -> None:
        plain.unlink(missing_ok=True)
        with plain.open("wb", buffering=0) as file:
            for _ in names:
                file.write(data.data)
            os.fsync(file.fileno())

    ours, theirs = fastest(write_artifact, write_plain, clock=time.perf_counter)
    subject = "writing objects / write() and fsync()"
    yield Measurement(subject, 100 * theirs / ours, "%", 70)
    yield Measurement("writing objects", PAYLOAD_BYTES / ours / 1e6, "MB/s")
    plain.unlink()
    yield from measure_reading(path, names)


def measure_reading(path: Path, names: list[str]) -> Iterator[Measurement]:
    """Reading the objects of an artifact against reading the same bytes of its file."""
    buffer = np.empty(OBJECT_BYTES, np.uint8)
    with open_artifact(path) as artifact, path.open("rb", buffering=0) as file:
        offsets = [artifact.record(name).offset for name in names]
        start = artifact.file_bytes - artifact.payload_bytes

        def read_into() -> None:
            for offset in offsets:
                artifact.read_into(offset, buffer)

        def copy_view() -> None:
            for name in names:
                np.copyto(buffer, artifact.read_object(name))

        def read_plain() -> None:
            for offset in offsets:
                file.seek(start + offset)
                if file.readinto(buffer.data) != buffer.size:
                    raise OSError("short read")

        into, view, theirs = fastest(read_into, copy_view, read_plain, clock=time.perf_counter)
    subject = "read_into() / read()"
    yield Measurement(subject, 100 * theirs / into, "%", 80)
    subject = "copying read_object() / read()"
    yield Measurement(subject, 100 * theirs / view, "%", 80)
    yield Measurement("read_into()", PAYLOAD_BYTES / into / 1e6, "MB/s")


def write_large_directory(path: Path) -> bytes:
    """Write an artifact of one object and many bindings; returns its JSON text."""
    width, hidden = 8, 16
    spec = TensorSpec("experts", (NUM_BINDINGS * width, hidden), "bf16", "contiguous_le_v1")
    bindings, uses = {}, []
    for index in range(NUM_BINDINGS):
        name = f"text/layers/{index // 768}/moe/experts/{index // 3 % 256}/{index % 3}"
        begin = index * width * hidden
        bindings[name] = Binding(parts=(Part("experts", begin, begin + width * hidden),))
        uses.append(Use(name, f"text/layers/{index // 768}/ffn_input", "A16Only"))
    plan = plan_artifact([spec], components={"text": Component({})}, bindings=bindings, uses=uses)
    with ArtifactWriter(path, plan) as writer:
        writer.write("experts", 0, bytes(plan.directory.payload_bytes))
    return plan.json_bytes


def measure_opening(folder: Path) -> Iterator[Measurement]:
    """Opening a large directory against parsing its text."""
    path = folder / "large.ninfer"
    text = write_large_directory(path)
    parsing, opening = fastest(partial(json.loads, text), lambda: open_artifact(path).close())
    subject = f"opening {NUM_BINDINGS} bindings ({len(text) / 1e6:.1f} MB)"
    yield Measurement(subject, opening, "s", 1.5 * parsing + 0.3, is_limit=True)
    yield Measurement("json.loads of the same text", parsing, "s")


def describe_run() -> dict[str, str]:
    """Where and on what the numbers were measured."""
    revision = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return {
        "command": " ".join(sys.argv),
        "revision": revision.stdout.strip(),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def print_table(measurements: list[Measurement]) -> None:
    """Print the measurements for a person."""
    table = Table(Column("subject", no_wrap=True), "value", "unit", "required", "ratio")
    for item in measurements:
        bound = "<=" if item.is_limit else ">="
        required = "" if item.required is None else f"{bound} {item.required:.3g}"
        ratio = "" if item.ratio is None else f"{item.ratio:.2f}"
        style = None if item.is_met else "bold red"
        value = f"{item.value:.3f}" if item.unit == "s" else f"{item.value:.0f}"
        table.add_row(item.subject, value, item.unit, required, ratio, style=style)
    for column in (1, 3, 4):
        table.columns[column].justify = "right"
    table.caption = "MB/s: encoded bytes of codecs, float32 bytes of quantizing"
    Console().print(table)


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--folder", type=Path, help="where to write files (default: temporary)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measurements = [
            *measure_codecs(),
            *measure_zero_groups(),
            *measure_files(Path(folder)),
            *measure_opening(Path(folder)),
        ]
    if options.json:
        items = [
            asdict(item) | {"ratio": item.ratio, "is_met": item.is_met} for item in measurements
        ]
        print(json.dumps({"run": describe_run(), "measurements": items}, indent=1))
    else:
        print_table(measurements)
    return 0 if all(item.is_met for item in measurements) else 1


if __name__ == "__main__":
    sys.exit(main())
