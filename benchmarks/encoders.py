"""Speed of the converter's encoders on one device, without files.

    python benchmarks/encoders.py [--device cuda --jobs 8] [--megabytes 512]

Source values are bf16 in host memory, words end in host memory: on a GPU both transfers count. Every
job encodes a matrix of its own, as the workers of a conversion do.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np

from ninfer_quant.array_module import DEVICES, Device
from ninfer_quant.methods.registry import find_method
from ninfer_quant.methods.request import MethodInput, MethodRequest, ObjectOutput, Target
from ninfer_quant.sources.logical import ArraySource
from ninfer_quant.sources.words import MatrixWords

K = 5120
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


def measure(
    method: str, values: np.ndarray, device: Device, rows_per_chunk: int, jobs: int
) -> dict[str, float]:
    """MB of source per second on the wall, and per second of a processor."""
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
        produce(Discard())

    with ThreadPoolExecutor(jobs) as pool:
        # Once for the kernels and the memory that stay.
        list(pool.map(encode, work))
        started, worked = time.perf_counter(), time.process_time()
        list(pool.map(encode, work))
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - worked
    size = jobs * values.nbytes / 1e6
    return {"mb_per_s": round(size / seconds, 1), "mb_per_cpu_s": round(size / cpu_seconds, 1)}


def main() -> int:
    """Run the benchmark; prints one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--rows-per-chunk", type=int, default=512)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    rows = max(128, options.megabytes * 1_000_000 // (2 * K) // 128 * 128)
    generator = np.random.default_rng(0)
    values = generator.standard_normal((rows, K), np.float32) * np.float32(0.02)
    words = values.astype(ml_dtypes.bfloat16)
    speeds = {
        method: measure(method, words, options.device, options.rows_per_chunk, options.jobs)
        for method in METHODS
    }
    document: dict[str, Any] = {
        "device": options.device,
        "source_bytes": words.nbytes,
        "jobs": options.jobs,
    }
    document["methods"] = speeds
    print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
