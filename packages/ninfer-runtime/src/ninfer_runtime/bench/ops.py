"""Speed of ops that move little or decide little: time, bytes and operations of each case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from ninfer_runtime.bench.ceilings import Ceilings
from ninfer_runtime.bench.op_cases import Maker, OpCase
from ninfer_runtime.bench.timing import time_us
from ninfer_runtime.device.cuda import CudaDevice


def run_cases(
    device: CudaDevice,
    ceilings: Ceilings,
    cases: list[OpCase],
    *,
    repetitions: int,
    advance: Callable[[int, str], None],
) -> Iterator[dict[str, Any]]:
    """Time cases; one row of results for each.

    Results are not checked here: the tests of the ops do that.
    """
    for case in cases:
        maker = Maker(device)
        calls = [case.make(maker) for _ in range(case.copies())]

        def work(calls: list[Callable[[], object]] = calls) -> None:
            for call in calls:
                call()

        times = [time_us(device, work) / len(calls) for _ in range(repetitions)]
        us = median(times)
        del calls, work
        device.xp.get_default_memory_pool().free_all_blocks()
        advance(1, f"{case.op} {case.case}")
        yield {
            "op": case.op,
            "case": case.case,
            "megabytes": case.num_bytes / 1e6,
            "us": us,
            "us_of_runs": times,
            "gb_s": case.num_bytes / us / 1e3,
            "fraction_of_read": case.num_bytes / us * 1e6 / ceilings.read,
            "us_above_ideal": us - case.num_bytes / ceilings.read * 1e6,
            "tflop_s": case.flops / us / 1e6,
        }
