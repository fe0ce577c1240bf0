from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_runtime.device import DType, cpu, get_device
from ninfer_runtime.errors import DeviceError


@pytest.fixture
def device():
    return get_device("cpu")


@pytest.mark.parametrize("array", [np.ones((2, 3), np.float32), np.array([1, -2], np.int32)])
def test_host_arrays_come_back_unchanged(device, array):
    tensor = device.from_host(array)
    assert tensor.shape == array.shape
    assert tensor.num_bytes == array.nbytes
    np.testing.assert_array_equal(device.to_host(tensor), array)
    assert device.to_host(tensor).dtype == array.dtype


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (1.0, 0x3F80),
        (-0.0, 0x8000),
        (1 + 2**-8, 0x3F80),  # a tie, to the even word below
        (1 + 3 * 2**-8, 0x3F82),  # a tie, to the even word above
        (1 + 2**-8 + 2**-20, 0x3F81),
        (3.4e38, 0x7F80),  # beyond the largest bf16
        (np.inf, 0x7F80),
    ],
)
def test_rounding_to_bf16(device, value, word):
    tensor = device.from_host(np.array([value], np.float32), DType.BF16)
    assert tensor.array.tolist() == [word]


def test_nan_stays_nan_in_bf16(device):
    tensor = device.from_host(np.array([np.nan], np.float32), DType.BF16)
    assert np.isnan(device.to_host(tensor)).all()


@given(word=st.integers(0, 0xFFFF))
def test_every_bf16_word_survives_the_way_through_float32(word):
    device = get_device("cpu")
    words = np.array([word], np.uint16)
    values = device.to_host(device.from_host(words, DType.BF16))
    if np.isnan(values[0]):
        assert word & 0x7F80 == 0x7F80
        assert word & 0x7F
    else:
        assert device.from_host(values, DType.BF16).array.tolist() == [word]


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.ones(2), None),
        (np.ones(2, np.int64), None),
        (np.ones(2, np.float32), DType.INT32),
        (np.ones(2, np.int32), DType.FP32),
        (np.ones(2, np.int32), DType.BF16),
    ],
)
def test_other_host_arrays_are_refused(device, array, dtype):
    with pytest.raises(DeviceError, match=str(array.dtype)):
        device.from_host(array, dtype)


def test_new_tensors_have_shape_and_dtype(device):
    assert device.empty((2, 3), DType.BF16).array.dtype == np.uint16
    assert device.zeros((2, 3), DType.INT32).array.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert repr(device.zeros((2, 3), DType.BF16)) == "Tensor([2, 3], bf16, cpu:0)"


def test_views_share_memory(device):
    tensor = device.zeros((4, 6), DType.FP32)
    view = tensor[1:3, 2:4].reshape(2, 2, 1)
    view.array[...] = 1
    assert tensor.array.sum() == 4


def write_host(path, monkeypatch, *, available: int, group: dict[str, str]):
    meminfo = path / "meminfo"
    meminfo.write_text(f"MemTotal:  1000 kB\nMemAvailable:  {available} kB\nHugePages_Free: 0\n")
    for name, text in group.items():
        (path / name).write_text(text)
    monkeypatch.setattr(cpu, "_MEMINFO", meminfo)
    monkeypatch.setattr(cpu, "_CGROUP", path)


def test_memory_without_control_group(device, tmp_path, monkeypatch):
    write_host(tmp_path, monkeypatch, available=700, group={})
    memory = device.memory()
    assert (memory.free_bytes, memory.total_bytes) == (700 * 1024, 1000 * 1024)


@pytest.mark.parametrize(
    ("limit", "free", "total"),
    [("max", 700 * 1024, 1000 * 1024), ("500000", 250_000, 500_000), ("100", 0, 100)],
)
def test_memory_within_a_control_group(device, tmp_path, monkeypatch, limit, free, total):
    group = {
        "memory.max": f"{limit}\n",
        "memory.current": "300000\n",
        "memory.stat": "anon 250000\ninactive_file 50000\n",
    }
    write_host(tmp_path, monkeypatch, available=700, group=group)
    memory = device.memory()
    assert (memory.free_bytes, memory.total_bytes) == (free, total)


def test_memory_of_this_host_is_plausible(device):
    memory = device.memory()
    assert 0 < memory.free_bytes <= memory.total_bytes


def test_copies_and_fills_are_done_at_once(device):
    host = device.pinned(3)
    host[:] = [1, 2, 3]
    tensor = device.zeros((3,), DType.INT32)
    device.copy_in(host, tensor)
    host[:] = 0
    device.mark().wait()
    assert tensor.array.tolist() == [1, 2, 3]
    device.clear(tensor)
    assert tensor.array.tolist() == [0, 0, 0]


def test_captured_work_is_done_when_it_is_replayed(device):
    done = []

    def work():
        done.append(1)
        return len(done)

    recording = device.capture(work)
    assert (done, recording.result) == ([], None)
    recording.replay()
    recording.replay()
    assert recording.result == 2
    recording.close()
    assert recording.result is None
    assert device.needs([lambda: done.clear()]) == frozenset()
    assert len(done) == 2
