"""Words between host and device, on every kind of device."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.device import get_device


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.getfixturevalue("gpu") if request.param == "cuda" else get_device("cpu")


@pytest.fixture
def rng():
    return np.random.default_rng()


@pytest.mark.parametrize("count", [0, 1, 176, 960, 961, 5000])
def test_words_are_those_of_the_time_of_the_call(device, rng, count):
    tensor = device.from_host(np.full(count + 2, -7, np.int32))
    host = rng.integers(-(2**31), 2**31, count).astype(np.int32)
    expected = host.copy()
    device.copy_in(host, tensor[1 : 1 + count])
    host[:] = 0
    np.testing.assert_array_equal(device.to_host(tensor), [-7, *expected, -7])


def test_later_words_replace_earlier_ones(device, rng):
    tensor = device.from_host(np.zeros(100, np.int32))
    for _ in range(50):
        host = rng.integers(0, 1000, 100).astype(np.int32)
        device.copy_in(host, tensor)
    np.testing.assert_array_equal(device.to_host(tensor), host)


def test_what_the_device_leaves_is_there_when_a_mark_has_been_passed(device, rng):
    host, tensor = device.shared(6000)
    assert not host.any()
    values = rng.integers(0, 1000, 6000).astype(np.int32)
    device.copy_in(values, tensor)
    device.mark().wait()
    np.testing.assert_array_equal(host, values)
