from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.device import DType, get_device
from ninfer_runtime.kv import DeltaNetState, HybridState, KVCache
from ninfer_runtime.kv.cache import GROWTH_TOKENS

ROW = 2 * 3 * 4 * 2  # KH = 2, HD = 3, four bytes, keys and values


@pytest.fixture
def device():
    return get_device("cpu")


def rows(device, begin: int, end: int, offset: float = 0):
    values = np.arange(begin * 6, end * 6, dtype=np.float32).reshape(-1, 2, 3)
    return device.from_host(values + np.float32(offset))


def test_appended_rows_stay_in_order_while_the_cache_grows(device):
    cache = KVCache(2, 3, 3000, device)
    end = 0
    for length in (1, 1, 300, 5, 1000):
        begin, end = end, end + length
        keys, values = cache.append(rows(device, begin, end), rows(device, begin, end, 0.5))
        np.testing.assert_array_equal(keys.array, rows(device, 0, end).array)
        np.testing.assert_array_equal(values.array, rows(device, 0, end, 0.5).array)
    assert cache.length == end


def test_a_short_sequence_takes_one_block_of_a_large_capacity(device):
    cache = KVCache(2, 3, 10**6, device)
    assert cache.num_bytes == 0
    cache.append(rows(device, 0, 5), rows(device, 0, 5))
    assert cache.num_bytes == GROWTH_TOKENS * ROW


def test_a_full_cache_takes_its_capacity_only(device):
    cache = KVCache(2, 3, 700, device)
    for begin in range(0, 700, 100):
        cache.append(rows(device, begin, begin + 100), rows(device, begin, begin + 100))
    assert cache.num_bytes == 700 * ROW


def test_growing_copies_each_row_a_bounded_number_of_times(device, monkeypatch):
    cache = KVCache(2, 3, 10**6, device)
    grown = []
    grow = cache._grow

    def counted(needed: int) -> None:
        grown.append(needed)
        grow(needed)

    monkeypatch.setattr(cache, "_grow", counted)
    for token in range(5000):
        cache.append(rows(device, token, token + 1), rows(device, token, token + 1))
    assert len(grown) <= 6


def test_a_cache_may_be_bf16(device):
    cache = KVCache(2, 3, 10, device, DType.BF16)
    key = device.from_host(np.ones((1, 2, 3), np.float32), DType.BF16)
    keys, _ = cache.append(key, key)
    assert keys.dtype is DType.BF16
    assert device.to_host(keys).tolist() == np.ones((1, 2, 3)).tolist()


def test_bytes_of_a_whole_state(device):
    recurrent = DeltaNetState(4, 10, 2, 8, 16, device)
    assert recurrent.num_bytes == 4 * (3 * 10 + 2 * 8 * 16)
    assert not recurrent.history.array.any()
    assert not recurrent.recurrent.array.any()
    cache = KVCache(2, 3, 10, device)
    cache.append(rows(device, 0, 1), rows(device, 0, 1))
    state = HybridState(10, [cache], [recurrent, recurrent])
    assert state.num_bytes == cache.num_bytes + 2 * recurrent.num_bytes
    assert (state.length, state.capacity) == (0, 10)
