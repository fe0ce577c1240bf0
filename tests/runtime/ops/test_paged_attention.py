from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.runtime.ops.paged import (
    cut_out_of_one,
    poisoned_pages,
    random_spans,
    read_rows,
    write_rows,
)

from ninfer_runtime.device import DType
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.kv.formats import KV_FORMATS
from ninfer_runtime.ops.paged_arguments import Spans
from ninfer_runtime.ops.paged_attention import paged_attention
from ninfer_runtime.ops.paged_attention.cases import TEST_CASES, AttentionCase

ON_CUDA = True
SCALE = 1 / 16
every_format = pytest.mark.parametrize("name", KV_FORMATS)


def hadamard():
    index = np.arange(256)
    return (-1.0) ** np.bitwise_count(index[:, None] & index) / 16


def bf16(values):
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def oracle(device, case, query, gate, pages, spans):
    """Row by row in float64, from decoded pages; transformed rows are first transformed back."""
    rows = np.zeros(query.shape)
    group = case.heads // case.key_heads
    for b, (before, valid) in enumerate(zip(case.before, case.valid, strict=True)):
        sides = []
        for planes in (pages.key, pages.value):
            stored = read_rows(device, planes, spans, b, before + valid)
            decoded = planes.format.codec.decode(*stored).astype(np.float64)
            sides.append(decoded @ hadamard() if planes.format.transformed else decoded)
        keys, values = sides
        for c in range(valid):
            visible = before + c + 1
            for h in range(case.heads):
                scores = SCALE * keys[:visible, h // group] @ query[b, c, h]
                weights = np.exp(scores - scores.max())
                rows[b, c, h] = weights @ values[:visible, h // group] / weights.sum()
    return rows / (1 + np.exp(-gate))


def draw(device, rng, case, name):
    """Query and gate (bf16 values), pages and spans of a case."""
    shape = (len(case.before), case.columns, case.heads, 256)
    query, gate = bf16(2 * rng.standard_normal(shape)), bf16(rng.standard_normal(shape))
    spans, num_pages = random_spans(device, rng, case)
    pages = poisoned_pages(device, name, num_pages, case.key_heads)
    for b, (before, valid) in enumerate(zip(case.before, case.valid, strict=True)):
        keys, values = (
            bf16(rng.standard_normal((before + valid, case.key_heads, 256))) for _ in range(2)
        )
        keys[..., 3] *= 8  # an outlier, as real keys have
        pages = write_rows(device, pages, spans, b, keys, values)
    return query, gate, pages, spans


@every_format
@pytest.mark.parametrize("case", TEST_CASES, ids=str)
@pytest.mark.parametrize("strided", [False, True])
def test_matches_the_formula(device, tensor, poisoned, values_of, rng, name, case, strided):
    query, gate, pages, spans = draw(device, rng, case, name)
    out = poisoned(query.shape, DType.BF16)
    q, g = (tensor(each, DType.BF16) for each in (query, gate))
    if strided:
        q, g = cut_out_of_one(tensor, {"query": query, "gate": gate}).values()
    assert paged_attention(q, g, pages, spans, scale=SCALE, out=out) is out
    expected = oracle(device, case, query, gate, pages, spans)
    found = values_of(out)
    # A weight and a value are rounded to 11 bits, the result to 8.
    np.testing.assert_allclose(found, expected, rtol=2**-8, atol=2e-3)
    for b, valid in enumerate(case.valid):
        assert not found[b, valid:].any()


@every_format
def test_other_sequences_do_not_show(device, tensor, values_of, rng, name):
    case = AttentionCase(6, 1, 2, (500, 70, 1300, 3), (2, 1, 2, 0))
    query, gate, pages, spans = draw(device, rng, case, name)
    together = values_of(
        paged_attention(
            tensor(query, DType.BF16), tensor(gate, DType.BF16), pages, spans, scale=SCALE
        )
    )
    for b in range(len(case.before)):
        own = [device.from_host(device.to_host(each)[b : b + 1]) for each in spans.tensors[1:]]
        q, g = (tensor(each[b : b + 1], DType.BF16) for each in (query, gate))
        alone = paged_attention(q, g, pages, Spans(spans.tables, *own), scale=SCALE)
        np.testing.assert_array_equal(values_of(alone)[0], together[b])


def test_huge_scores_do_not_overflow(device, tensor, values_of, rng):
    case = AttentionCase(2, 1, 1, (200,), (1,))
    query, gate, pages, spans = draw(device, rng, case, "bf16")
    q, g = tensor(1000 * query, DType.BF16), tensor(gate, DType.BF16)
    found = values_of(paged_attention(q, g, pages, spans, scale=SCALE))
    expected = oracle(device, case, bf16(1000 * query), gate, pages, spans)
    np.testing.assert_allclose(found, expected, rtol=2**-8, atol=2e-3)


def test_wrong_arguments_are_refused(device, tensor, rng):
    case = AttentionCase(4, 2, 1, (5,), (1,))
    query, gate, pages, spans = draw(device, rng, case, "int8")
    q, g = (tensor(each, DType.BF16) for each in (query, gate))
    with pytest.raises(OpArgumentError, match="'query'"):
        paged_attention(q[..., :128], g, pages, spans, scale=SCALE)
    with pytest.raises(OpArgumentError, match="'gate'"):
        paged_attention(q, g[:, :, :2], pages, spans, scale=SCALE)
    with pytest.raises(OpArgumentError, match="a multiple of 2 heads"):
        paged_attention(q[:, :, :3], g[:, :, :3], pages, spans, scale=SCALE)
    short = Spans(spans.tables, spans.table_rows, spans.before, spans.columns[:0])
    with pytest.raises(OpArgumentError, match="'columns'"):
        paged_attention(q, g, pages, short, scale=SCALE)
