"""The profile of some launches on a device whose kernels take as many microseconds as they say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from ninfer_runtime.bench import profile as profile_module
from ninfer_runtime.bench.profile import WINDOW, profile
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.device.cuda import CudaDevice

NORM = Kernel("ops/rms_norm/rms_norm.cu", "ninfer::rms_norm_kernel<8>")
COPY = Kernel("bench/bandwidth.cu", "ninfer::read_loads_kernel")


class Point:
    def __init__(self, us):
        self.us = us

    def ms_since(self, earlier):
        return (self.us - earlier.us) / 1e3


class Device(CudaDevice):
    """Its queue does nothing until the gate is open."""

    def __init__(self):
        self.clock = 0.0
        self.queued = 0
        self.longest_queue = 0
        self.gates = []
        self.opened = []
        self.stream = cast(Any, SimpleNamespace(handle=7, record=lambda: Point(self.clock)))
        self._noted = None
        self._observe = lambda kernel: None

    def pinned(self, num_words):
        self.gates.append(np.zeros(num_words, np.int32))
        return self.gates[-1]

    def run(self, kernel, us):
        self.announce(kernel)
        self.clock += us
        self.queued += 1
        self.longest_queue = max(self.longest_queue, self.queued)

    def wait(self, stream, address, value, flags):
        assert (stream, address, self.queued) == (7, self.gates[-1].ctypes.data, 0)
        self.opened.append(value)
        return (0,)

    def synchronize(self):
        assert self.gates[-1][0] == self.opened[-1]
        self.queued = 0


@pytest.fixture
def device(monkeypatch):
    device = Device()
    flags = SimpleNamespace(CU_STREAM_WAIT_VALUE_GEQ=0)
    driver = SimpleNamespace(CUstreamWaitValue_flags=flags, cuStreamWaitValue32=device.wait)
    monkeypatch.setattr(profile_module, "driver", lambda: driver)
    return device


def test_launches_of_a_kernel_are_added_up(device):
    def work():
        device.run(NORM, 3)
        device.run(COPY, 50)
        device.run(NORM, 4)

    copy, norm = profile(device, work)
    assert copy.to_json() == {
        "op": "bench/bandwidth.cu",
        "kernel": "ninfer::read_loads_kernel",
        "launches": 1,
        "us": pytest.approx(50),
    }
    assert (norm.to_json()["op"], norm.launches) == ("rms_norm", 2)
    assert norm.us == pytest.approx(7)
    # Whoever observed before does so again.
    device.run(NORM, 1)


def test_each_launch_counts_with_its_median(device):
    spans = iter([1, 100, 2, 3, 50])

    def work():
        device.run(NORM, next(spans))

    (norm,) = profile(device, work)
    assert norm.us == pytest.approx(3)


def test_a_long_piece_of_work_is_let_through_in_windows(device):
    count = 2 * WINDOW + 3

    def work():
        for index in range(count):
            device.run(NORM, index % 5)

    (norm,) = profile(device, work, repetitions=1)
    assert norm.launches == count
    assert norm.us == pytest.approx(sum(index % 5 for index in range(count)))
    assert device.longest_queue == WINDOW
    assert device.opened == [1, 2, 3]
