from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.runtime.ops.paged import (
    POISON_BYTE,
    cut_out_of_one,
    poisoned_pages,
    random_spans,
    raw,
    read_rows,
)

from ninfer_runtime.device import DType
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.kv.formats import KV_FORMATS
from ninfer_runtime.ops.attention_inputs import AttentionInputs, attention_inputs
from ninfer_runtime.ops.paged_attention.cases import TEST_CASES, AttentionCase

ON_CUDA = True
EPS = 1e-6
PAIRS = 32
MODULUS = 1e-30


def bf16(values):
    return values.astype(ml_dtypes.bfloat16).astype(np.float64)


def oracle(x, weight, cos, sin):
    """Normalised and rotated heads in float64."""
    x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS) * (1 + weight)
    first, second = x[..., :PAIRS], x[..., PAIRS : 2 * PAIRS]
    c, s = cos[:, :, None], sin[:, :, None]
    rotated = (first * c - second * s, second * c + first * s, x[..., 2 * PAIRS :])
    return np.concatenate(rotated, axis=-1)


def draw(rng, case):
    B, C = len(case.before), case.columns
    arrays = {
        "query": 3 * rng.standard_normal((B, C, case.heads, 256)),
        "key": 3 * rng.standard_normal((B, C, case.key_heads, 256)),
        "value": rng.standard_normal((B, C, case.key_heads, 256)),
        "query_weight": rng.standard_normal(256),
        "key_weight": rng.standard_normal(256),
    }
    angles = 10 * rng.standard_normal((B, C, PAIRS))
    return arrays, np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


@pytest.mark.parametrize("name", KV_FORMATS)
@pytest.mark.parametrize("case", TEST_CASES, ids=str)
@pytest.mark.parametrize("strided", [False, True])
def test_matches_the_formula(
    device, tensor, poisoned, values_of, assert_rounded_once, rng, name, case, strided
):
    arrays, cos, sin = draw(rng, case)
    given = {each: tensor(array, DType.BF16) for each, array in arrays.items()}
    if strided:
        given |= cut_out_of_one(tensor, {name: arrays[name] for name in ("query", "key", "value")})
    spans, num_pages = random_spans(device, rng, case)
    pages = poisoned_pages(device, name, num_pages, case.key_heads)
    out = poisoned(arrays["query"].shape, DType.BF16)
    given |= {"cos": tensor(cos), "sin": tensor(sin)}
    found = attention_inputs(AttentionInputs(**given, eps=EPS), pages, spans, out=out)
    assert found is out
    exact = {each: values_of(value) for each, value in given.items()}
    queries = oracle(exact["query"], exact["query_weight"], cos, sin)
    keys = oracle(exact["key"], exact["key_weight"], cos, sin)
    for b, valid in enumerate(case.valid):
        queries[b, valid:] = 0
    assert_rounded_once(out, queries)
    check_pages(device, case, pages, spans, keys, exact["value"])


def check_pages(device, case, pages, spans, keys, values):
    """New rows decode to what the codec makes of the exact ones; everything else is as it was."""
    changed = {id(tensor): 0 for side in (pages.key, pages.value) for tensor in side.tensors}
    for b, (before, valid) in enumerate(zip(case.before, case.valid, strict=True)):
        for planes, rows in ((pages.key, keys), (pages.value, values)):
            stored = read_rows(device, planes, spans, b, before + valid)
            found = planes.format.codec.decode(*(each[before:] for each in stored))
            coded = planes.format.encode(bf16(rows[b, :valid]).astype(np.float32))
            expected = planes.format.codec.decode(*coded)
            # A key may be rounded to the other bf16 neighbour, and a code to its neighbour.
            error = np.abs(found - expected) / (
                np.abs(expected).max(axis=-1, keepdims=True) + MODULUS
            )
            largest = {"bf16": 0.008, "fp16": 0, "int8": 0.02, "fp8": 0.08, "nvfp4": 0.35}
            assert (error <= largest[planes.format.codec.name]).all(), error.max()
            assert (error > 0).sum() <= 0.02 * error.size
            for tensor, each in zip(planes.tensors, stored, strict=True):
                old = each[:before].view(np.uint8)
                assert (old == POISON_BYTE).all()
                changed[id(tensor)] += each[before:].size
    for side in (pages.key, pages.value):
        for tensor in side.tensors:
            array = raw(device, tensor)
            poison = np.full(1, POISON_BYTE, np.uint8).repeat(array.itemsize).view(array.dtype)
            untouched = (
                array.view(f"u{array.itemsize}") == poison.view(f"u{array.itemsize}")
            ).sum()
            assert untouched >= array.size - changed[id(tensor)]


def test_wrong_arguments_are_refused(device, tensor, rng):
    case = AttentionCase(4, 2, 1, (5,), (1,))
    arrays, cos, sin = draw(rng, case)
    good = {each: tensor(array, DType.BF16) for each, array in arrays.items()}
    good |= {"cos": tensor(cos), "sin": tensor(sin)}
    spans, num_pages = random_spans(device, rng, case)
    pages = poisoned_pages(device, "int8", num_pages, 2)
    for argument, wrong in (
        ("key", good["key"][:, :, :1]),
        ("value", good["query"]),
        ("query_weight", good["query_weight"][:7]),
        ("sin", good["sin"][..., :3]),
        ("cos", tensor(np.ones((1, 1, 129)))),
    ):
        with pytest.raises(OpArgumentError, match=f"'{argument}'"):
            attention_inputs(AttentionInputs(**{**good, argument: wrong}, eps=EPS), pages, spans)
