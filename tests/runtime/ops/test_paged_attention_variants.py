from __future__ import annotations

from dataclasses import replace

import pytest

from ninfer_runtime.cuda.target import TYPICAL_TARGETS
from ninfer_runtime.device.cuda import WORKSPACE_BYTES
from ninfer_runtime.kv.formats import KV_FORMATS
from ninfer_runtime.ops.paged_attention.cases import MODEL_HEADS
from ninfer_runtime.ops.paged_attention.cuda import (
    STATIC_SHARED_BYTES,
    Variant,
    choose_variant,
    kernels,
    partial_bytes,
    segments_of,
)

HOPPER = TYPICAL_TARGETS["sm_90a"]


@pytest.mark.parametrize(
    ("name", "rows", "expected"),
    [
        ("int8", 1, Variant(1, 1, 4, 2)),
        ("int8", 8, Variant(1, 1, 4, 2)),
        ("int8", 9, Variant(1, 2, 2, 4)),
        ("int8", 17, Variant(2, 2, 2, 4)),
        ("int8", 48, Variant(2, 4, 2, 4)),
        ("int8", 49152, Variant(2, 8, 1, 4)),
        ("bf16", 6, Variant(1, 1, 4, 3)),
        ("nvfp4", 6, Variant(1, 1, 4, 3)),
    ],
)
def test_the_variant_follows_the_rows(name, rows, expected):
    assert choose_variant(KV_FORMATS[name], rows, HOPPER) == expected


@pytest.mark.parametrize("name", KV_FORMATS)
@pytest.mark.parametrize("architecture", TYPICAL_TARGETS)
@pytest.mark.parametrize("rows", [1, 24, 64, 96, 5000])
def test_every_device_holds_its_variant(name, architecture, rows):
    target = TYPICAL_TARGETS[architecture]
    variant = choose_variant(KV_FORMATS[name], rows, target)
    assert variant is not None
    assert variant.rows >= min(rows, 128)
    assert variant.shared_bytes(KV_FORMATS[name]) + STATIC_SHARED_BYTES <= target.shared_bytes


def test_no_variant_fits_too_little_shared_memory():
    small = replace(HOPPER, shared_bytes=16 * 1024)
    assert choose_variant(KV_FORMATS["bf16"], 1, small) is None


def test_segments_fill_the_device_but_never_depend_on_the_batch():
    one, few, many = Variant(1, 1, 4, 2), Variant(1, 2, 2, 4), Variant(2, 8, 1, 4)
    int8, bf16 = KV_FORMATS["int8"], KV_FORMATS["bf16"]
    assert segments_of(int8, one, 4, 1) == 96
    assert segments_of(int8, one, 1, 1) == 256
    assert segments_of(int8, few, 4, 1) == 64
    assert segments_of(int8, many, 4, 2) == 8
    assert segments_of(int8, many, 4, 384) == 1
    assert segments_of(bf16, one, 4, 1) == 32
    assert segments_of(bf16, many, 4, 1) == 16


@pytest.mark.parametrize("name", KV_FORMATS)
@pytest.mark.parametrize("architecture", TYPICAL_TARGETS)
def test_the_workspace_holds_the_segments_of_eight_sequences(name, architecture):
    kv_format, target = KV_FORMATS[name], TYPICAL_TARGETS[architecture]
    for heads, key_heads in MODEL_HEADS.values():
        for columns in range(1, 200):
            rows = columns * heads // key_heads
            variant = choose_variant(kv_format, rows, target)
            assert variant is not None
            segments = segments_of(kv_format, variant, key_heads, -(-rows // variant.rows))
            assert 8 * sum(partial_bytes(key_heads * rows * segments)) <= WORKSPACE_BYTES


def test_a_device_gets_few_instances():
    found = kernels(TYPICAL_TARGETS["sm_90a"])
    assert len(found) == len(set(found)) <= 36
