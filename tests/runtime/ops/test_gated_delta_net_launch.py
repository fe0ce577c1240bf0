"""How calls are cut up for a GPU; needs none."""

from __future__ import annotations

import pytest

from ninfer_runtime.cuda.target import TYPICAL_TARGETS
from ninfer_runtime.ops.gated_delta_net import chunks, recurrence

RING = 16


@pytest.mark.parametrize("B", [1, 3, 8])
@pytest.mark.parametrize("C", [64, 65, 127, 2048, 5000, 8192])
def test_passes_cover_every_cut(B, C):
    """Wherever the stored state lies, and however many tokens are replayed."""
    count, per_pass = chunks.passes(B, C, RING)
    for replayed in (0, 1, RING - 3):
        total = replayed + C
        needed = max(
            -(-stored // chunks.CHUNK) - (stored - total) // chunks.CHUNK
            for stored in range(replayed, total + 1)
        )
        assert needed <= count * per_pass
        assert needed > (count - 1) * per_pass


@pytest.mark.parametrize("B", [1, 3, 8, 40])
def test_what_a_pass_leaves_in_memory_is_bounded(B):
    _, per_pass = chunks.passes(B, 8192, RING)
    key_heads, value_heads = 16, 48
    num_bytes = (
        2
        * B
        * per_pass
        * (key_heads * chunks.KEY_RECORD_BYTES + value_heads * chunks.VALUE_RECORD_BYTES)
    )
    assert num_bytes < 400e6


@pytest.mark.parametrize("architecture", TYPICAL_TARGETS)
def test_blocks_fit_the_shared_memory(architecture):
    target = TYPICAL_TARGETS[architecture]
    assert chunks.choose_variant(target).shared_bytes <= target.shared_bytes
    for tasks in (1, 48, 384):
        strips = recurrence.choose_strips(target, tasks)
        assert recurrence.shared_bytes(strips, recurrence.LONG_CHUNK) < target.shared_bytes - 1024
