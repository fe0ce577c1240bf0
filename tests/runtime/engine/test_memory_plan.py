"""How much is asked for before a model is loaded, on a GPU that has any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ninfer_format.errors import ExitCode
from ninfer_runtime.device.base import Memory
from ninfer_runtime.engine.memory_plan import check_memory, choose_prefill_chunk
from ninfer_runtime.engine.options import EngineOptions
from ninfer_runtime.errors import CapacityError
from ninfer_runtime.models.architecture import ModelMemory

GIB = 2**30
MEMORY = ModelMemory(
    weight_bytes=16 * GIB, loading_bytes=16 * GIB + 1, cache_bytes=GIB, recurrent_bytes=GIB // 4
)


class AnyDevice:
    def __init__(self, kind: str, free_bytes: int) -> None:
        self.kind = kind
        self._free_bytes = free_bytes

    def memory(self) -> Memory:
        return Memory(self._free_bytes, 2**50)


def device(kind: str, free_bytes: float) -> Any:
    return AnyDevice(kind, int(free_bytes))


def chunk(on: Any, **options: Any) -> int:
    return choose_prefill_chunk(EngineOptions(Path("m"), **options), MEMORY, on)


def test_a_chunk_that_is_asked_for_is_taken():
    assert chunk(device("cuda", 0), prefill_chunk=2048) == 2048
    assert chunk(device("cpu", 0), prefill_chunk=128) == 128


def test_without_one_the_cpu_takes_1024_and_a_gpu_what_fits():
    assert chunk(device("cpu", 0), gpu_prefill_chunk=4096) == 1024
    assert chunk(device("cuda", 80 * GIB)) == 1024
    sizes = [
        chunk(device("cuda", free * GIB), gpu_prefill_chunk=4096)
        for free in (24, 19.24, 18.49, 18.125, 17.9, 0)
    ]
    assert sizes == [4096, 2048, 1024, 1024, 256, 128]


def test_what_does_not_fit_is_refused_with_what_it_consists_of():
    states = 3 * (GIB + GIB // 4)
    needed = 16 * GIB + states + GIB // 2 + 1024 * 3 * 2**17
    check_memory(MEMORY, device("cuda", needed), 1024, sequences=3)
    with pytest.raises(CapacityError) as caught:
        check_memory(MEMORY, device("cuda", needed - 1), 1024, sequences=3)
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (needed, needed - 1)
    assert f"keys and values {3 * GIB}, recurrent states {3 * GIB // 4}" in str(caught.value)
    assert caught.value.exit_code == ExitCode.CAPACITY
    # On the CPU nothing is set aside.
    check_memory(MEMORY, device("cpu", 16 * GIB + states), 1024, sequences=3)


def test_loading_may_take_more_than_the_loaded_model():
    memory = ModelMemory(weight_bytes=10, loading_bytes=100, cache_bytes=5, recurrent_bytes=5)
    check_memory(memory, device("cpu", 100), 1024)
    with pytest.raises(CapacityError):
        check_memory(memory, device("cpu", 99), 1024)
