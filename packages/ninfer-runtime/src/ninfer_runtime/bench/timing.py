"""How long work on a GPU takes, launched from a graph so that the host does not show."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import median

from ninfer_runtime.device.cuda import CudaDevice


def time_us(device: CudaDevice, work: Callable[[], None], *, replays: int = 9) -> float:
    """Median time of `work`, in microseconds.

    Args:
        device: Where it runs.
        work: Launches on the device's stream. Data that it reads more than once must not fit into
            the caches, or their speed is what is measured.
        replays: How often it is timed.
    """
    graph = device.capture(work)
    graph.replay()
    points = [device.stream.record()]
    for _ in range(replays):
        graph.replay()
        points.append(device.stream.record())
    device.synchronize()
    times = [later.ms_since(earlier) * 1e3 for earlier, later in pairwise(points)]
    graph.close()
    return median(times)
