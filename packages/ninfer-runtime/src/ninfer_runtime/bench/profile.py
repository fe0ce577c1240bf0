"""Where the time of one step goes: each kernel for itself, without overlap and without the host."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from ninfer_runtime.cuda.driver import check, driver
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.streams import Event
from ninfer_runtime.device.cuda import CudaDevice

WINDOW = 250
"""Launches that are queued before the device may begin with them: a queue holds about a thousand
launches and points in time together."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """All launches of one kernel in a piece of work.

    Attributes:
        kernel: Which.
        launches: How often.
        us: Microseconds of all of them.
    """

    kernel: Kernel
    launches: int
    us: float

    def to_json(self) -> dict[str, Any]:
        """The values as a JSON object."""
        return {
            "op": op_of(self.kernel),
            "kernel": self.kernel.instance,
            "launches": self.launches,
            "us": self.us,
        }


def profile(
    device: CudaDevice, work: Callable[[], object], repetitions: int = 5
) -> list[KernelTime]:
    """Time every kernel of some work, longest first.

    Args:
        device: Where it runs.
        work: Launches kernels and waits for nothing; it always launches the same.
        repetitions: How often it is timed; the median of each launch counts.
    """
    runs = []
    for _ in range(repetitions):
        launches = _Launches(device)
        with device.observed(launches.note):
            work()
        runs.append(launches.finish())
    totals: dict[Kernel, list[float]] = defaultdict(list)
    for same in zip(*runs, strict=True):
        totals[same[0][0]].append(median(us for _, us in same))
    found = [KernelTime(kernel, len(times), sum(times)) for kernel, times in totals.items()]
    return sorted(found, key=lambda each: -each.us)


def op_of(kernel: Kernel) -> str:
    """The op that a kernel belongs to."""
    found = re.match(r"ops/([^/]+)/", kernel.source)
    return found[1] if found else kernel.source


class _Launches:
    """Points in time before each launch of some work.

    The device waits at a gate in host memory until a window of launches is queued behind it, so that
    it goes through them without ever waiting for the host.
    """

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._gate = device.pinned(1)
        self._gate[0] = 0
        self._windows = 0
        self._kernels: list[Kernel] = []
        self._points: list[Event] = []
        self._times: list[tuple[Kernel, float]] = []

    def note(self, kernel: Kernel) -> None:
        """A kernel is about to be launched."""
        if len(self._kernels) == WINDOW:
            self._close_window()
        if not self._kernels:
            self._open_window()
        self._kernels.append(kernel)
        self._points.append(self._device.stream.record())

    def finish(self) -> list[tuple[Kernel, float]]:
        """Each launch with its microseconds."""
        if self._kernels:
            self._close_window()
        return self._times

    def _open_window(self) -> None:
        self._windows += 1
        at_least = driver().CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
        code = driver().cuStreamWaitValue32(
            self._device.stream.handle, self._gate.ctypes.data, self._windows, int(at_least)
        )
        check(code, "waiting for a word of memory")

    def _close_window(self) -> None:
        points = [*self._points, self._device.stream.record()]
        self._gate[0] = self._windows
        self._device.synchronize()
        for index, kernel in enumerate(self._kernels):
            us = points[index + 1].ms_since(points[index]) * 1e3
            self._times.append((kernel, us))
        self._kernels, self._points = [], []
