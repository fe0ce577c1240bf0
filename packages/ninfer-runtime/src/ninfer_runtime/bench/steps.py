"""Profiles of the steps that the tests of a model consist of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, cast

import numpy as np

from ninfer_runtime.bench.models import SAMPLING, Test
from ninfer_runtime.bench.profile import KernelTime, profile
from ninfer_runtime.device.cuda import CudaDevice
from ninfer_runtime.engine.executor import Executor

REPLAYS = 9
"""How often a step is timed as a whole."""


@dataclass(frozen=True, slots=True)
class StepProfile:
    """Where the time of a step goes.

    Attributes:
        us: Microseconds of the step as it is executed, without what the host does around it.
        kernels: Its kernels, each alone: what they take together is more, because as a rule a kernel
            begins before the one before it has ended.
    """

    us: float
    kernels: list[KernelTime]

    def to_json(self) -> dict[str, Any]:
        """The values as a JSON object."""
        return {"us": self.us, "kernels": [each.to_json() for each in self.kernels]}


def profile_decode(executor: Executor, test: Test) -> StepProfile:
    """One step of a test that decodes, at its depth."""
    device = _gpu(executor)
    chunk, depth = executor.options.prefill_chunk, max(1, test.depth)
    rng = np.random.default_rng(20)
    lanes = []
    for _ in range(test.sequences):
        lane = executor.begin(depth + 1, SAMPLING)
        # Each sequence has tokens of its own: alike, they would all choose the same experts.
        for begin in range(0, depth, chunk):
            count = min(chunk, depth - begin)
            executor.prefill(lane, rng.integers(0, executor.options.public_tokens, count))
        lanes.append(lane)
    last = rng.integers(0, executor.options.public_tokens, test.sequences)
    work = executor.repeatable_step(lanes, last.tolist())
    found = StepProfile(_time_us(device, executor.recorded_step(lanes)), profile(device, work))
    for lane in lanes:
        executor.end(lane)
    return found


def profile_prefill(executor: Executor, test: Test) -> StepProfile:
    """The last whole chunk of the prompts of a test."""
    device = _gpu(executor)
    chunk = executor.options.prefill_chunk
    length = test.depth + test.prompt
    lane = executor.begin(length, SAMPLING)
    ids = np.arange(length) % executor.options.public_tokens
    first = max(0, length - chunk)
    for begin in range(0, first, chunk):
        executor.prefill(lane, ids[begin : min(begin + chunk, first)])
    work = executor.repeatable_chunk(lane, ids[first:])
    found = StepProfile(_time_us(device, work), profile(device, work))
    executor.end(lane)
    return found


def _time_us(device: CudaDevice, work: Callable[[], object]) -> float:
    """Median time of work that is given to the device again and again."""
    work()
    points = [device.stream.record()]
    for _ in range(REPLAYS):
        work()
        points.append(device.stream.record())
    device.synchronize()
    return median(later.ms_since(earlier) * 1e3 for earlier, later in pairwise(points))


def _gpu(executor: Executor) -> CudaDevice:
    return cast(CudaDevice, executor.device)
