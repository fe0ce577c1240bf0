"""Words as parameters of launches, with a driver that does what the kernel would do."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from cuda.bindings import driver as bindings

from ninfer_runtime.cuda import launch, words
from ninfer_runtime.cuda.launch import LoadedKernel
from ninfer_runtime.cuda.nvrtc import Cubin

MOST_PARAMETER_BYTES = 4096


@pytest.fixture
def store(monkeypatch):
    """Launch what brings words to an address; returns how many launches that took."""
    launched = []

    def launch_kernel(config, function, address, extra):
        data, to, count = (ctypes.c_size_t * 3).from_address(address)
        to = ctypes.c_size_t.from_address(to).value
        count = ctypes.c_int.from_address(count).value
        ctypes.memmove(to, data, count * words.WORD_BYTES)
        launched.append(count)
        return (bindings.CUresult(0),)

    monkeypatch.setattr(bindings, "cuLaunchKernelEx", launch_kernel)
    monkeypatch.setattr(launch, "driver", lambda: bindings)
    kernel = LoadedKernel(Cubin(b"", "f_kernel", 1, 0, 0), 0, None)

    def call(host, address):
        launched.clear()
        for arguments in words.launches(host, address):
            kernel.launch(words.GEOMETRY, arguments, 0)
        return len(launched)

    return call


@pytest.mark.parametrize(
    ("count", "launches"), [(0, 0), (1, 1), (176, 1), (960, 1), (961, 2), (5000, 6)]
)
def test_all_words_arrive_and_no_others(store, count, launches):
    target = np.full(count + 2, -7, np.int32)
    host = np.random.default_rng().integers(-(2**31), 2**31, count).astype(np.int32)
    assert store(host, target[1:].ctypes.data) == launches
    np.testing.assert_array_equal(target, [-7, *host, -7])


def test_parameters_are_no_more_than_every_driver_takes():
    ((*_, arguments),) = [list(words.launches(np.zeros(1, np.int32), 0))]
    assert sum(ctypes.sizeof(kind) for _, kind in arguments) <= MOST_PARAMETER_BYTES
