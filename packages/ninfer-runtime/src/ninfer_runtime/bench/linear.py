"""Speed of `linear` with packed weights: bytes of the weight over time, beside the read ceiling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from ninfer_runtime.bench.ceilings import Ceilings
from ninfer_runtime.bench.timing import time_us
from ninfer_runtime.device.cuda import CudaDevice
from ninfer_runtime.device.dtypes import DType, float32_to_bf16
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import DeviceFailedError
from ninfer_runtime.ops.linear.activations import pack
from ninfer_runtime.ops.linear.cuda import multiply
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.schedule import Schedule, problem_of
from ninfer_runtime.ops.linear.tuning import choose
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS, RecordFormat, decode_records

ROTATED_BYTES = 1_100_000_000
"""Distinct weights that one measurement goes through, many times the second-level cache."""

LARGEST_ERROR = 4e-3
"""Relative error (2-norm) of bf16 results that a timed kernel may have."""

_CHECKED_TILES = 4


@dataclass(frozen=True, slots=True)
class LinearCase:
    """One measurement.

    Attributes:
        format: Numeric format of the weight.
        name: What the matrix is in its model.
        shape: N and K.
        columns: Rows T of x.
    """

    format: str
    name: str
    shape: tuple[int, int]
    columns: int


class LinearBench:
    """Random weights on a device, and products with them.

    Args:
        device: Where it runs.
        formats: Formats that will be asked for, one after the other.
    """

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self._format = ""
        self._records: Any = None

    def weights(self, case: LinearCase) -> list[PackedWeight]:
        """Distinct weights of one shape, together about `ROTATED_BYTES`; at least two."""
        record_format = RECORD_FORMATS[case.format]
        (N, K), device = case.shape, self.device
        tiles, records = record_format.tiles(N), record_format.records(K)
        size = tiles * records
        copies = max(2, -(-ROTATED_BYTES // (size * record_format.record_bytes)))
        pool = self._random_records(record_format, copies * size)
        row_scale = None
        if record_format.groups in (0, 4) and case.format != "bf16":
            row_scale = device.upload(np.linspace(0.5, 1.5, N, dtype=np.float32))
        return [
            PackedWeight(
                case.format,
                case.shape,
                pool[i * size : (i + 1) * size].reshape(tiles, records, -1),
                row_scale,
                device,
            )
            for i in range(copies)
        ]

    def activations(self, case: LinearCase) -> Tensor:
        """Random x of a case."""
        rng = np.random.default_rng(case.columns)
        values = rng.standard_normal((case.columns, case.shape[1])).astype(np.float32)
        return self.device.from_host(float32_to_bf16(values), DType.BF16)

    def error(self, case: LinearCase, weight: PackedWeight, schedule: Schedule) -> float:
        """Relative error of the first and last rows of a product, of poisoned output.

        Raises:
            DeviceFailedError: An element was not written.
        """
        device, x = self.device, self.activations(case)
        out = self._poisoned(case)
        with device.workspace.frame():
            multiply(device, pack(device, x, weight), weight, out, schedule)
            found = device.to_host(out)
        if not np.isfinite(found).all():
            raise DeviceFailedError(f"{case} with {schedule} leaves elements unwritten")
        tiles = weight.data.shape[0]
        parts = [slice(0, min(_CHECKED_TILES, tiles)), slice(max(0, tiles - _CHECKED_TILES), tiles)]
        worst = 0.0
        for part in parts:
            rows = slice(part.start * 16, min(part.stop * 16, case.shape[0]))
            factors = None
            if weight.row_scale is not None:
                factors = device.download(weight.row_scale[rows])
            shape = (rows.stop - rows.start, case.shape[1])
            data = device.download(weight.data[part])
            values = decode_records(weight.record_format, data, factors, shape)
            expected = device.to_host(x).astype(np.float64) @ values.astype(np.float64).T
            difference = np.linalg.norm(found[:, rows] - expected)
            worst = max(worst, float(difference / np.linalg.norm(expected)))
        return worst

    def time_us(
        self, case: LinearCase, weights: list[PackedWeight], schedule: Schedule, replays: int = 9
    ) -> float:
        """Microseconds of one product among many with distinct weights."""
        device, x, out = self.device, self.activations(case), self._poisoned(case)
        with device.workspace.frame():
            packed = pack(device, x, weights[0])

            def work() -> None:
                for weight in weights:
                    multiply(device, packed, weight, out, schedule)

            return time_us(device, work, replays=replays) / len(weights)

    def _poisoned(self, case: LinearCase) -> Tensor:
        words = np.full((case.columns, case.shape[0]), 0x7FC0, np.uint16)
        return self.device.from_host(words, DType.BF16)

    def _random_records(self, record_format: RecordFormat, count: int) -> Any:
        """Records of random words with scales near one another, kept for the next shape."""
        if self._format != record_format.name or len(self._records) < count:
            self._format, self._records = record_format.name, None
            xp, size = self.device.xp, record_format.record_bytes
            xp.get_default_memory_pool().free_all_blocks()
            with self.device.allocating(), self.device.on_stream():
                words = xp.random.randint(0, 2**32, count * size // 4, dtype=np.uint32)
                records = words.view(np.uint8).reshape(count, size)
                _make_finite(record_format, records)
            self.device.synchronize()
            self._records = records
        return self._records[:count]


def _make_finite(record_format: RecordFormat, records: Any) -> None:
    """Make words of random bytes legal, and of a size that no sum overflows."""
    if record_format.name == "bf16":
        words = records.view(np.uint16)
        words &= 0x83FF
        words |= 0x3C00
    elif record_format.name == "fp8_e4m3fn_row_bf16":
        records &= 0xBF
    elif record_format.scale_bytes == 1:
        records[:, record_format.code_bytes :] &= 0x0F
        records[:, record_format.code_bytes :] |= 0x38
    else:
        scales = records[:, record_format.code_bytes :]
        scales[:, 1::2] = (scales[:, 1::2] & 0x03) | 0x1C


def run_linear(
    device: CudaDevice,
    ceilings: Ceilings,
    cases: Iterable[LinearCase],
    *,
    repetitions: int,
    advance: Callable[[int, str], None],
) -> Iterator[dict[str, Any]]:
    """Check and time products; one row of results for each.

    Raises:
        DeviceFailedError: A result is wrong.
    """
    bench = LinearBench(device)
    for case in cases:
        record_format = RECORD_FORMATS[case.format]
        problem = problem_of(record_format, case.shape, case.columns)
        schedule = choose(problem, device.target)
        weights = bench.weights(case)
        error = bench.error(case, weights[0], schedule)
        if not error <= LARGEST_ERROR:
            raise DeviceFailedError(f"{case} with {schedule} has a relative error of {error:.2e}")
        times = [bench.time_us(case, weights, schedule) for _ in range(repetitions)]
        num_bytes = weights[0].num_bytes + 2 * case.columns * sum(case.shape)
        us = median(times)
        kernel = device.kernel(schedule.kernel(record_format))
        advance(1, f"{case.format} {case.name}")
        yield {
            "op": "linear",
            "format": case.format,
            "matrix": case.name,
            "N": case.shape[0],
            "K": case.shape[1],
            "T": case.columns,
            "megabytes": num_bytes / 1e6,
            "us": us,
            "us_of_runs": times,
            "gb_s": num_bytes / us / 1e3,
            "fraction_of_read": num_bytes / us * 1e6 / ceilings.read,
            "us_above_ideal": us - num_bytes / ceilings.read * 1e6,
            "tflop_s": 2 * case.columns * case.shape[0] * case.shape[1] / us / 1e6,
            "relative_error": error,
            "kernel": schedule.kernel(record_format).instance,
            "registers": kernel.cubin.registers,
            "shared_bytes": schedule.shared_bytes(problem, device.target),
        }
