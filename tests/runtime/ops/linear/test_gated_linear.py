"""A projection that gates another one, against float64, and the products of the result."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.packed_weights import pack_weight

from ninfer_runtime.device import DType
from ninfer_runtime.errors import OpArgumentError, UnsupportedOpError
from ninfer_runtime.ops.add_rms_norm import add_product_rms_norm
from ninfer_runtime.ops.gated_linear import GatedWeight, gated_linear
from ninfer_runtime.ops.linear import Product, linear
from ninfer_runtime.ops.linear.activations import most_columns
from ninfer_runtime.ops.linear.cases import WEIGHT_FORMATS
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS, to_records
from ninfer_runtime.ops.product_input import ProductInput

ON_CUDA = True
COLUMNS = (1, 2, 4, 8, 9, 17, 32, 64, 128, 131, 200)
MANY = 192
"""Columns for which a weight may be rounded to bf16."""

N = 128


@pytest.fixture
def packed(stored_weight, device):
    """Gate and up [N, K] of a format on the device, and their values in float64."""

    def make(name, K, in_turns=True):
        codec, payload = stored_weight(name, (2 * N, K))
        weight = pack_weight(codec, payload, device, in_turns=in_turns)
        values = codec.decode(payload).reshape(2 * N, K).astype(np.float64)
        return GatedWeight((weight,), in_turns=in_turns), values

    return make


@pytest.fixture
def identity(device):
    """A weight with which a product gives back its rows."""

    def make(name):
        record_format = RECORD_FORMATS[name]
        words = np.eye(N, dtype=np.int32) * (0x3F80 if name == "bf16" else 1)
        scales = np.full((N, N // 64), 0x3C00, np.uint16)
        records = to_records(record_format, words, None if name == "bf16" else scales)
        data = records if device.kind == "cpu" else device.upload(records)
        return PackedWeight(name, (N, N), data, None, device)

    return make


def oracle(x, values):
    gate, up = x @ values[:N].T, x @ values[N:].T
    return gate / (1 + np.exp(-gate)) * up


def bound(x, values, dtype, *, many):
    """The largest error of each element: that of both products, and one rounding of the result.

    A float32 sum of K terms is off by K units of the sum of their magnitudes, of which x may be
    rounded to binary16 in its small elements; for many rows weights and products are rounded to bf16.
    The derivative of silu is below 1.1.
    """
    K = x.shape[1]
    gate, up = x @ values[:N].T, x @ values[N:].T
    errors = []
    for product, matrix in ((gate, values[:N]), (up, values[N:])):
        error = K * 2.0**-23 * (np.abs(x) @ np.abs(matrix).T) + 2.0**-25 * np.abs(matrix).sum(
            axis=1
        )
        if many:
            error += 2.0**-8 * (np.abs(x) @ np.abs(matrix).T + np.abs(product))
        errors.append(error)
    gated = np.abs(gate / (1 + np.exp(-gate)))
    error = 1.1 * errors[0] * (np.abs(up) + errors[1]) + gated * errors[1]
    error += 2.0**-20 * gated * np.abs(up)  # of the exponential and the quotient
    if dtype is DType.BF16:
        error += 2.0**-8 * (gated * np.abs(up) + error)
    return error + 1e-30


@pytest.mark.parametrize("K", [320, 1024])
@pytest.mark.parametrize("name", WEIGHT_FORMATS)
def test_every_number_of_rows(packed, tensor, poisoned, values_of, rng, name, K):
    weight, values = packed(name, K)
    for T in COLUMNS:
        for dtype in (DType.FP32, DType.BF16):
            x = tensor(rng.standard_normal((T, K)), DType.BF16)
            out = poisoned((T, N), dtype)
            assert gated_linear(x, weight, out=out) is out
            error = np.abs(values_of(out) - oracle(values_of(x), values))
            allowed = bound(values_of(x), values, dtype, many=T >= MANY)
            assert (error <= allowed).all(), (T, dtype, (error / allowed).max())


@pytest.mark.parametrize(("name", "K"), [("q4_g64_fp16", 5120), ("q5_g64_fp16", 17408)])
def test_long_rows(packed, tensor, poisoned, values_of, rng, name, K):
    """Of 17,408 columns no multiprocessor holds eight rows: two blocks add their sums."""
    weight, values = packed(name, K)
    for T in (1, 4, 8, 16):
        x = tensor(0.1 * rng.standard_normal((T, K)), DType.BF16)
        out = poisoned((T, N), DType.FP32)
        gated_linear(x, weight, out=out)
        error = np.abs(values_of(out) - oracle(values_of(x), values))
        assert (error <= bound(values_of(x), values, DType.FP32, many=False)).all(), T


@pytest.mark.parametrize("reader", ["q4_g64_fp16", "bf16"])
@pytest.mark.parametrize("name", ["q4_g64_fp16", "fp8_e4m3fn_row_bf16"])
def test_a_product_reads_what_other_ops_would(
    packed, identity, tensor, values_of, device, rng, name, reader
):
    """The very rows, up to the rounding of small elements to binary16 with the factor 64."""
    weight, _ = packed(name, 256)
    following = identity(reader)
    for T in COLUMNS:
        x = tensor(rng.standard_normal((T, 256)), DType.BF16)
        rows = values_of(gated_linear(x, weight))
        result = gated_linear(x, weight, reader=following)
        assert isinstance(result, ProductInput)
        if device.kind == "cuda" and most_columns(device.target) >= T:
            kept = (result.bf16, result.f16)
            assert [each is not None for each in kept] == [reader == "bf16", reader != "bf16"]
        found = values_of(linear(result, following))
        np.testing.assert_allclose(found, rows, rtol=0, atol=0 if reader == "bf16" else 2.0**-19)


@pytest.mark.parametrize("reader", ["q4_g64_fp16", "bf16"])
def test_a_reader_of_rows_that_are_not_packed(
    stored_weight, device, tensor, values_of, rng, reader
):
    """40 columns are no whole records."""
    codec, payload = stored_weight("q6_g64_fp16", (80, 128))
    both = pack_weight(codec, payload, device, in_turns=True)
    codec, payload = stored_weight(reader, (24, 40))
    following, values = pack_weight(codec, payload, device), codec.decode(payload).reshape(24, 40)
    for T in (1, 8, 40):
        x = tensor(rng.standard_normal((T, 128)), DType.BF16)
        result = gated_linear(x, GatedWeight((both,), in_turns=True), reader=following)
        found = values_of(linear(result, following))
        expected = values_of(result) @ values.T.astype(np.float64)
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error < 4e-3, T


def test_elements_up_to_four_million_are_read(packed, identity, tensor, values_of, rng):
    weight, _ = packed("bf16", 64)
    following = identity("q4_g64_fp16")
    x = tensor(100 * rng.standard_normal((3, 64)), DType.BF16)
    rows = values_of(gated_linear(x, weight))
    assert 1e6 < np.abs(rows).max() < 4e6
    found = values_of(linear(gated_linear(x, weight, reader=following), following))
    np.testing.assert_allclose(found, rows, rtol=0, atol=2.0**-19)


@pytest.mark.parametrize("T", [1, 3, 8, 20])
def test_rows_whose_norm_is_unfinished(packed, stored_weight, device, tensor, values_of, rng, T):
    weight, values = packed("q5_g64_fp16", 256)
    codec, payload = stored_weight("q4_g64_fp16", (256, 128))
    matrix = pack_weight(codec, payload, device)
    ones = tensor(np.ones(256), DType.BF16)
    x = tensor(rng.standard_normal((T, 256)), DType.BF16)
    rows = tensor(rng.standard_normal((T, 128)), DType.BF16)
    normed = add_product_rms_norm(x, Product(rows, matrix), ones, eps=1e-6)
    found = values_of(gated_linear(normed, weight))
    total = values_of(x)
    expected = oracle(total / np.sqrt((total * total).mean(axis=1, keepdims=True) + 1e-6), values)
    # The norm and the result are rounded to bf16.
    error = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert (error < 8e-3).all()


@pytest.mark.parametrize("T", [1, 8, 9, 140, 200])
def test_formats_of_their_own(stored_weight, device, tensor, values_of, rng, T):
    matrices, values = [], []
    for name in ("q4_g64_fp16", "q6_g64_fp16"):
        codec, payload = stored_weight(name, (N, 256))
        matrices.append(pack_weight(codec, payload, device))
        values.append(codec.decode(payload).reshape(N, 256).astype(np.float64))
    x = tensor(rng.standard_normal((T, 256)), DType.BF16)
    found = values_of(gated_linear(x, GatedWeight(tuple(matrices))))
    every = np.concatenate(values)
    allowed = bound(values_of(x), every, DType.BF16, many=True)
    assert (np.abs(found - oracle(values_of(x), every)) <= allowed).all()


@pytest.mark.parametrize("T", [1, 8, 33, 200])
def test_nothing_beside_the_result_is_written(packed, tensor, poisoned, values_of, rng, T):
    weight, _ = packed("q4_g64_fp16", 192)
    around = poisoned((T + 2, N + 16), DType.BF16)
    gated_linear(
        tensor(rng.standard_normal((T, 192)), DType.BF16, strided=True),
        weight,
        out=around[1 : T + 1, 8 : N + 8],
    )
    found = values_of(around)
    inside = np.zeros(found.shape, bool)
    inside[1 : T + 1, 8 : N + 8] = True
    assert np.isnan(found[~inside]).all()
    assert np.isfinite(found[inside]).all()


def test_numbers_of_a_cpu(tensor, values_of, device, rng):
    values = rng.standard_normal((2 * N, 64))
    x, both = tensor(rng.standard_normal((5, 64))), tensor(values)
    if device.kind == "cuda":
        with pytest.raises(UnsupportedOpError, match="linear"):
            gated_linear(x, GatedWeight((both,)))
        return
    found = gated_linear(x, GatedWeight((both,)))
    assert found.dtype is DType.FP32
    np.testing.assert_allclose(
        values_of(found), oracle(values_of(x), values_of(both)), rtol=1e-4, atol=1e-4
    )


@pytest.mark.gpu
@pytest.mark.parametrize("T", [1, 8, 16, 128])
def test_a_graph_repeats(gpu, stored_weight, rng, T):
    codec, payload = stored_weight("q4_g64_fp16", (512, 5120))
    matrix = pack_weight(codec, payload, gpu, in_turns=True)
    codec, payload = stored_weight("q5_g64_fp16", (128, 256))
    down = pack_weight(codec, payload, gpu)
    x = gpu.from_host(0.1 * rng.standard_normal((T, 5120)).astype(np.float32), DType.BF16)
    out = gpu.empty((T, 128), DType.BF16)

    def both():
        result = gated_linear(x, GatedWeight((matrix,), in_turns=True), reader=down)
        linear(result, down, out=out)

    both()
    expected = gpu.to_host(out)
    assert np.isfinite(expected).all()
    graph = gpu.capture(both)
    gpu.clear(out)
    for _ in range(3):
        graph.replay()
    np.testing.assert_array_equal(gpu.to_host(out), expected)
    graph.close()


def test_wrong_arguments_are_refused(packed, identity, tensor, poisoned):
    weight, _ = packed("q4_g64_fp16", 128)
    x = tensor(np.ones((2, 128)), DType.BF16)
    with pytest.raises(OpArgumentError, match="'weight'"):
        gated_linear(tensor(np.ones((2, 192)), DType.BF16), weight)
    with pytest.raises(OpArgumentError, match="'out'"):
        gated_linear(x, weight, out=poisoned((2, 2 * N), DType.BF16))
    half, _ = packed("bf16", 64)
    with pytest.raises(OpArgumentError, match="'reader'"):
        gated_linear(x, weight, reader=half.matrices[0])
    with pytest.raises(OpArgumentError, match="one matrix of 2N rows"):
        GatedWeight((*weight.matrices, identity("bf16")), in_turns=True)
    with pytest.raises(OpArgumentError, match="matrices of 2N rows"):
        GatedWeight(())
