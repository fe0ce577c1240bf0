"""Speed of the converter's encoders on one device, without files.

    python benchmarks/encoders.py [METHOD ...] [--device cuda --jobs 8] [--megabytes 512]

Source values are bf16 in host memory, words end in host memory: on a GPU both transfers count. Every
job encodes a matrix of its own, as the workers of a conversion do. Each method is measured three
times, after one round that counts for nothing; the fastest of the three is shown, since other work on
the machine only ever slows one down. Every method is one line of JSON as soon as it is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np

from ninfer_quant.array_module import DEVICES, Device, own_stream
from ninfer_quant.cli.device import choose_rows_per_chunk
from ninfer_quant.methods.registry import find_method
from ninfer_quant.methods.request import MethodInput, MethodRequest, ObjectOutput, Target
from ninfer_quant.sources.logical import ArraySource
from ninfer_quant.sources.words import MatrixWords

K = 5120
ROUNDS = 3
METHODS = {
    "grouped_absmax": "q4_g64_fp16",
    "grouped_mse": "q4_g64_fp16",
    "q4_rows_maxabs": "q4_g32_fp16_rows",
    "fp8_row_maxabs": "fp8_e4m3fn_row_bf16",
    "nvfp4_absmax": "nvfp4",
    "nvfp4_ratio": "nvfp4",
    "nvfp4_four_over_six": "nvfp4",
    "nvfp4_mse": "nvfp4",
}
LAYOUTS = {
    "q4_g64_fp16": "row_split_k128_v1",
    "q4_g32_fp16_rows": "row_group_v1",
    "fp8_e4m3fn_row_bf16": "row_scale_v1",
    "nvfp4": "block_scale_k16_m128x4_v1",
}


class Discard:
    """Implements `ObjectOutput`; words go nowhere."""

    def write_values(self, begin: int, words: np.ndarray) -> None:
        pass

    def write_rows(self, first_row: int, words: MatrixWords) -> None:
        pass

    def keep_alive(self) -> None:
        pass


def random_values(rows: int) -> np.ndarray:
    """Values like those of weights: bf16 ``[rows, K]``. Repeats after 8192 rows, to be made fast."""
    generator = np.random.default_rng(0)
    block = generator.standard_normal((min(rows, 8192), K), np.float32) * np.float32(0.02)
    return np.resize(block.astype(ml_dtypes.bfloat16), (rows, K))


def measure(
    method: str, values: np.ndarray, device: Device, rows_per_chunk: int, jobs: int
) -> dict[str, float]:
    """MB of source per second on the wall, and per second of a processor, in the fastest round."""
    format_name = METHODS[method]
    target = Target("weight/000000", values.shape, format_name, LAYOUTS[format_name])
    requests = [
        MethodRequest(
            target,
            (MethodInput("benchmark", values.shape, 0, ArraySource(values), {}),),
            parameters={},
            rows_per_chunk=rows_per_chunk,
            auxiliary_overrides={},
            device=device,
        )
        for _ in range(jobs)
    ]
    work = [find_method(method).plan(request).produce for request in requests]

    def encode(produce: Callable[[ObjectOutput], None]) -> None:
        with own_stream(device):
            produce(Discard())

    with ThreadPoolExecutor(jobs) as pool:
        # Once for the kernels, which every thread would compile for itself, and once for the memory that
        # stays.
        encode(work[0])
        list(pool.map(encode, work))
        rounds = []
        for _ in range(ROUNDS):
            started, worked = time.perf_counter(), time.process_time()
            list(pool.map(encode, work))
            rounds.append((time.perf_counter() - started, time.process_time() - worked))
    seconds, cpu_seconds = min(rounds)
    size = jobs * values.nbytes / 1e6
    return {"mb_per_s": round(size / seconds, 1), "mb_per_cpu_s": round(size / cpu_seconds, 1)}


def main() -> int:
    """Run the benchmark; prints a line of JSON for each method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="default: all")
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--rows-per-chunk", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    unknown = set(options.methods) - METHODS.keys()
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; methods are {', '.join(METHODS)}")
    rows = max(128, options.megabytes * 1_000_000 // (2 * K) // 128 * 128)
    values = random_values(rows)
    conditions = {"device": options.device, "jobs": options.jobs, "source_bytes": values.nbytes}
    rows_per_chunk = choose_rows_per_chunk(options.rows_per_chunk, options.device)
    for method in options.methods or METHODS:
        speed = measure(method, values, options.device, rows_per_chunk, options.jobs)
        print(json.dumps({"method": method, **speed, **conditions}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
