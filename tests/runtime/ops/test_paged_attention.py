from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.ops.paged import SCALE, bf16, cut_out_of_one, draw, oracle, raw, tolerance

from ninfer_runtime.device import DType
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.kv.formats import KV_FORMATS
from ninfer_runtime.ops.attention_inputs import AttentionInputs, attention_inputs
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
    out = poisoned((query[:, :, 0, 0].size, query[0, 0].size), DType.BF16)
    q, g = (tensor(each, DType.BF16) for each in (query, gate))
    if strided:
        q, g = cut_out_of_one(tensor, {"query": query, "gate": gate}).values()
    assert paged_attention(q, g, pages, spans, scale=SCALE, out=out) is out
    expected = oracle(device, case, query, gate, pages, spans)
    found = values_of(out).reshape(query.shape)
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
    ).reshape(query.shape)
    for b in range(len(case.before)):
        own = [device.from_host(device.to_host(each)[b : b + 1]) for each in spans.tensors[1:]]
        q, g = (tensor(each[b : b + 1], DType.BF16) for each in (query, gate))
        alone = paged_attention(q, g, pages, Spans(spans.tables, *own), scale=SCALE)
        np.testing.assert_array_equal(values_of(alone).ravel(), together[b].ravel())


@every_format
@pytest.mark.parametrize(
    "case",
    [
        AttentionCase(6, 1, 1, (63, 64, 0, 700), (1, 1, 0, 1)),
        AttentionCase(8, 2, 2, (127, 5, 319), (2, 1, 2)),
        AttentionCase(24, 4, 1, (300,), (1,)),
        AttentionCase(8, 1, 16, (0, 129), (16, 7)),
        AttentionCase(6, 1, 65, (63, 5), (65, 1)),
    ],
    ids=str,
)
def test_heads_that_are_not_ready_are_made_so(device, tensor, values_of, name, case):
    """The same rows of the pages and the same results as with an op for it, to the last bit."""
    B, C = len(case.before), case.columns

    def inputs_and_pages():
        rng = np.random.default_rng(7)
        query, gate, pages, spans = draw(device, rng, case, name)
        shape = (B, C, case.key_heads, 256)
        key, value = 3 * rng.standard_normal(shape), rng.standard_normal(shape)
        heads = cut_out_of_one(tensor, {"query": query, "key": key, "gate": gate, "value": value})
        gate = heads.pop("gate")
        weights = {
            f"{side}_weight": tensor(rng.standard_normal(256), DType.BF16)
            for side in ("query", "key")
        }
        angles = 10 * rng.standard_normal((B, C, 32))
        rotation = {"cos": tensor(np.cos(angles)), "sin": tensor(np.sin(angles))}
        inputs = AttentionInputs(**heads, **weights, **rotation, eps=1e-6)
        return inputs, gate, pages, spans

    inputs, gate, pages, spans = inputs_and_pages()
    together = values_of(paged_attention(inputs, gate, pages, spans, scale=SCALE))
    inputs, gate, other_pages, spans = inputs_and_pages()
    ready = attention_inputs(inputs, other_pages, spans)
    apart = values_of(paged_attention(ready, gate, other_pages, spans, scale=SCALE))
    np.testing.assert_array_equal(together, apart)
    for found, expected in zip(pages.tensors, other_pages.tensors, strict=True):
        words = [raw(device, each).view(np.uint8) for each in (found, expected)]
        np.testing.assert_array_equal(words[0], words[1])


def test_huge_scores_do_not_overflow(device, tensor, values_of, rng):
    case = AttentionCase(2, 1, 1, (200,), (1,))
    query, gate, pages, spans = draw(device, rng, case, "bf16")
    q, g = tensor(1000 * query, DType.BF16), tensor(gate, DType.BF16)
    found = values_of(paged_attention(q, g, pages, spans, scale=SCALE)).reshape(query.shape)
    expected = oracle(device, case, bf16(1000 * query), gate, pages, spans)
    np.testing.assert_allclose(found, expected, rtol=2**-8, atol=2e-3)


@every_format
@pytest.mark.parametrize("columns", [1, 40])
def test_huge_queries_do_not_overflow(device, tensor, values_of, rng, name, columns):
    case = AttentionCase(2, 1, columns, (100,), (columns,))
    query, gate, pages, spans = draw(device, rng, case, name)
    query, scale = bf16(1e6 * query), 1e-6 * SCALE
    q, g = (tensor(each, DType.BF16) for each in (query, gate))
    found = values_of(paged_attention(q, g, pages, spans, scale=scale)).reshape(query.shape)
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
