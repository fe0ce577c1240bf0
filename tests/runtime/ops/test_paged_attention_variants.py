from __future__ import annotations

from dataclasses import replace

import pytest

from ninfer_runtime.cuda.target import TYPICAL_TARGETS
from ninfer_runtime.device.cuda import WORKSPACE_BYTES
from ninfer_runtime.kv.formats import KV_FORMATS
from ninfer_runtime.ops.paged_attention import decode, prefill
from ninfer_runtime.ops.paged_attention.cases import MODEL_HEADS
from ninfer_runtime.ops.paged_attention.cuda import choose_plan, kernels
from ninfer_runtime.ops.paged_attention.decode import Variant, choose_variant
from ninfer_runtime.ops.paged_attention.plan import partial_bytes

HOPPER = TYPICAL_TARGETS["sm_90a"]
every_format = pytest.mark.parametrize("name", KV_FORMATS)
every_architecture = pytest.mark.parametrize("architecture", TYPICAL_TARGETS)


def plan_of(name, rows, target, key_heads=4):
    plan = choose_plan(KV_FORMATS[name], rows, key_heads, target)
    assert plan is not None
    return plan


@pytest.mark.parametrize(
    ("name", "architecture", "expected"),
    [
        ("int8", "sm_90a", Variant(8, 3, 1)),
        ("bf16", "sm_90a", Variant(4, 3, 1)),
        ("nvfp4", "sm_90a", Variant(8, 4, 1)),
        ("int8", "sm_80", Variant(8, 2, 1)),
        ("int8", "sm_89", Variant(4, 2, 1)),
        ("bf16", "sm_89", Variant(2, 2, 1)),
    ],
)
def test_the_variant_follows_the_shared_memory(name, architecture, expected):
    assert choose_variant(KV_FORMATS[name], TYPICAL_TARGETS[architecture]) == expected


@every_format
@every_architecture
def test_every_device_holds_its_variant(name, architecture):
    target = TYPICAL_TARGETS[architecture]
    variant = choose_variant(KV_FORMATS[name], target)
    assert variant is not None
    assert variant.fits(KV_FORMATS[name], target)


@every_format
@every_architecture
@pytest.mark.parametrize("rows", [1, 65, 49152])
def test_every_device_holds_a_block_for_many_rows(name, architecture, rows):
    target = TYPICAL_TARGETS[architecture]
    block = prefill.choose_block(KV_FORMATS[name], rows, target)
    assert block is not None
    assert ("wgmma" in block.instance) == (architecture == "sm_90a")
    assert block.shared_bytes <= target.shared_bytes


def test_nothing_fits_too_little_shared_memory():
    small = replace(HOPPER, shared_bytes=16 * 1024)
    assert choose_plan(KV_FORMATS["bf16"], 1, 4, small) is None
    assert choose_plan(KV_FORMATS["bf16"], 1000, 4, small) is None


@every_architecture
def test_many_rows_get_another_kernel_than_few(architecture):
    target = TYPICAL_TARGETS[architecture]
    plans = [plan_of("int8", rows, target) for rows in (6, 8, 9, 49152)]
    assert ["prefill" in plan.kernel.source for plan in plans] == [False, False, True, True]
    assert [plan.final for plan in plans] == [False, False, False, True]


def test_segments_of_few_rows_never_depend_on_the_batch():
    assert decode.segments_of(4) == 33
    assert decode.segments_of(2) == 66
    assert decode.segments_of(1000) == 1


def test_segments_of_many_rows_fill_a_device_that_their_blocks_do_not():
    def segments(rows):
        return prefill.segments_of(rows, 128, num_key_value_heads=4, multiprocessors=132)

    assert segments(128) == 23  # what may be left to be merged allows no more
    assert segments(1200) == 2
    assert segments(8192) == 1


@every_format
@every_architecture
def test_the_workspace_holds_the_segments_of_eight_sequences(name, architecture):
    target = TYPICAL_TARGETS[architecture]
    for heads, key_heads in MODEL_HEADS.values():
        for columns in [*range(1, 200), 512, 8192]:
            rows = columns * heads // key_heads
            plan = plan_of(name, rows, target, key_heads)
            if not plan.final:
                count = key_heads * rows * plan.segments
                assert 8 * sum(partial_bytes(count)) <= WORKSPACE_BYTES


def test_a_device_gets_few_instances():
    found = kernels(HOPPER)
    assert len(found) == len(set(found)) <= 27
