from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.ops.paged import SCALE, bf16, cut_out_of_one, draw, oracle, tolerance

from ninfer_runtime.device import DType
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.kv.formats import KV_FORMATS
from ninfer_runtime.ops.paged_arguments import Spans
from ninfer_runtime.ops.paged_attention import paged_attention
from ninfer_runtime.ops.paged_attention.cases import TEST_CASES, AttentionCase

ON_CUDA = True
every_format = pytest.mark.parametrize("name", KV_FORMATS)


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
    np.testing.assert_allclose(found, expected, rtol=2**-8, atol=tolerance(name))
    for b, valid in enumerate(case.valid):
        assert not found[b, valid:].any()


@every_format
@pytest.mark.parametrize(
    "case",
    [
        AttentionCase(6, 1, 2, (500, 70, 1300, 3), (2, 1, 2, 0)),
        AttentionCase(6, 1, 30, (500, 70, 3), (30, 1, 0)),
    ],
    ids=str,
)
def test_other_sequences_do_not_show(device, tensor, values_of, rng, name, case):
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


@every_format
@pytest.mark.parametrize("columns", [1, 40])
def test_huge_queries_do_not_overflow(device, tensor, values_of, rng, name, columns):
    case = AttentionCase(2, 1, columns, (100,), (columns,))
    query, gate, pages, spans = draw(device, rng, case, name)
    query, scale = bf16(1e6 * query), 1e-6 * SCALE
    q, g = (tensor(each, DType.BF16) for each in (query, gate))
    found = values_of(paged_attention(q, g, pages, spans, scale=scale))
    expected = oracle(device, case, query, gate, pages, spans, scale)
    np.testing.assert_allclose(found, expected, rtol=2**-8, atol=tolerance(name))


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
