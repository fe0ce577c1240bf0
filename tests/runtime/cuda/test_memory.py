from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_runtime.cuda.memory import ALIGNMENT, Arena
from ninfer_runtime.errors import DeviceError


@given(sizes=st.lists(st.integers(0, 2000), max_size=20))
def test_pieces_are_aligned_and_do_not_overlap(sizes):
    arena = Arena(ALIGNMENT * 7, 2**20, "test")
    end = arena.address
    for size in sizes:
        begin = arena.take(size)
        assert begin % ALIGNMENT == 0
        assert begin >= end
        end = begin + size
    assert end <= arena.address + arena.used_bytes


def test_a_frame_takes_back_what_was_taken_inside():
    arena = Arena(0, 4096, "test")
    first = arena.take(1)
    with arena.frame():
        second = arena.take(1000)
        with arena.frame():
            arena.take(1)
        assert arena.take(1) > second
    assert arena.take(1) == second == first + ALIGNMENT
    assert arena.peak_bytes == 256 + 1024 + 256


def test_a_frame_ends_with_an_error_too():
    arena = Arena(0, 4096, "test")
    with pytest.raises(DeviceError, match="are needed"), arena.frame():
        arena.take(arena.take(1) + 4000)
    assert arena.used_bytes == 0


def test_too_much_is_refused_with_numbers():
    arena = Arena(0, 1024, "workspace")
    arena.take(300)
    with pytest.raises(DeviceError, match="workspace of 1024 bytes has 512 left, 513 are needed"):
        arena.take(513)
    assert arena.take(512) == 512


def test_an_unaligned_block_is_refused():
    with pytest.raises(DeviceError, match="not a multiple of 256"):
        Arena(8, 1024, "test")
