"""Kernels that a GPU has for rows for which it takes another, against the float64 oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.runtime.ops.paged import SCALE, bf16, draw, oracle, tolerance

from ninfer_runtime.device import DType
from ninfer_runtime.kv.formats import KV_FORMATS
from ninfer_runtime.ops.attention_inputs import AttentionInputs, attention_inputs
from ninfer_runtime.ops.paged_arguments import Spans
from ninfer_runtime.ops.paged_attention import paged_attention
from ninfer_runtime.ops.paged_attention.cases import AttentionCase
from ninfer_runtime.ops.paged_attention.cuda import launch
from ninfer_runtime.ops.paged_attention.decode import decode_plan
from ninfer_runtime.ops.paged_attention.prefill import plan_of, portable_block

pytestmark = pytest.mark.gpu
every_format = pytest.mark.parametrize("name", KV_FORMATS)


@every_format
@pytest.mark.parametrize(
    "case",
    [
        AttentionCase(6, 1, 17, (0,), (17,)),
        AttentionCase(8, 2, 65, (63, 1000, 5), (65, 1, 0)),
        AttentionCase(6, 1, 150, (70,), (133,)),
    ],
    ids=str,
)
@pytest.mark.parametrize("segments", [1, 3])
def test_the_portable_kernel_for_many_rows(gpu, rng, name, case, segments):
    block = portable_block(KV_FORMATS[name], gpu.target)
    assert block is not None
    final = segments == 1
    plan = replace(
        plan_of(block, rows_of(case), case.key_heads, gpu.target),
        kernel=block.kernel(final=final),
        segments=segments,
        final=final,
    )
    assert_matches(gpu, rng, name, case, plan)


@every_format
def test_blocks_take_segments_of_several_sequences(gpu, rng, name):
    """More segments than an H200 processes at once; each sequence gets what it gets alone."""
    before = tuple(range(100, 6000, 490))
    case = AttentionCase(12, 2, 1, before, (1,) * len(before))
    query, gate, pages, spans = draw(gpu, rng, case, name)
    q, g = (gpu.from_host(each, DType.BF16) for each in (query, gate))
    together = gpu.to_host(paged_attention(q, g, pages, spans, scale=SCALE)).reshape(query.shape)
    expected = oracle(gpu, case, query, gate, pages, spans)
    np.testing.assert_allclose(together, expected, rtol=2**-8, atol=tolerance(name))
    for b in (0, 5, len(before) - 1):
        own = [gpu.from_host(gpu.to_host(each)[b : b + 1]) for each in spans.tensors[1:]]
        alone = paged_attention(
            q[b : b + 1], g[b : b + 1], pages, Spans(spans.tables, *own), scale=SCALE
        )
        np.testing.assert_array_equal(gpu.to_host(alone).ravel(), together[b].ravel())


@every_format
@pytest.mark.parametrize("before", [300, 700])
def test_a_new_row_belongs_to_any_round(gpu, rng, name, before):
    """Of a segment of many rounds, whose first ones are copied before the new row is there."""
    case = AttentionCase(6, 1, 1, (before,), (1,))
    query, gate, pages, spans = draw(gpu, rng, case, name)
    heads = [query, *(rng.standard_normal((1, 1, 1, 256)) for _ in range(2))]
    weights = rng.standard_normal((2, 256))
    q, k, v, g, query_weight, key_weight = (
        gpu.from_host(bf16(each), DType.BF16) for each in (*heads, gate, *weights)
    )
    cos, sin = (gpu.from_host(rng.standard_normal((1, 1, 32)).astype(np.float32)) for _ in "cs")
    inputs = AttentionInputs(q, k, v, query_weight, key_weight, cos, sin, 1e-6)
    plan = decode_plan(KV_FORMATS[name], case.key_heads, gpu.target)
    assert plan is not None
    outs = [gpu.empty((1, 6 * 256), DType.BF16) for _ in range(2)]
    launch(replace(plan, segments=1), q, g, spans, outs[0], pages, SCALE, inputs)
    ready = attention_inputs(inputs, pages, spans)
    launch(replace(plan, segments=1), ready, g, spans, outs[1], pages, SCALE)
    together, apart = map(gpu.to_host, outs)
    np.testing.assert_array_equal(together, apart)


def rows_of(case):
    return case.columns * case.heads // case.key_heads


def assert_matches(gpu, rng, name, case, plan):
    assert plan is not None
    query, gate, pages, spans = draw(gpu, rng, case, name)
    out = gpu.from_host(np.full(query.shape, 0x7FC0, np.uint16), DType.BF16)
    out = out.reshape(-1, case.heads * 256)
    q, g = (gpu.from_host(each, DType.BF16) for each in (query, gate))
    launch(plan, q, g, spans, out, pages, SCALE)
    found = gpu.to_host(out).reshape(query.shape).astype(np.float64)
    expected = oracle(gpu, case, query, gate, pages, spans)
    np.testing.assert_allclose(found, expected, rtol=2**-8, atol=tolerance(name))
    for b, valid in enumerate(case.valid):
        assert not found[b, valid:].any()
