"""Weights that are made up: every word is legal, and activations keep their size."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from tests.compile.dry_gpu import DryGpu
from tests.runtime.stored_weights import layout_of

from ninfer_format import Fp8RowWords, GroupedWords, Nvfp4Words, codec_for
from ninfer_format.errors import NInferError
from ninfer_runtime.cuda.target import TYPICAL_TARGETS
from ninfer_runtime.device import DType, get_device
from ninfer_runtime.device.cpu import CpuDevice
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.models.architecture import LogicalParameter
from ninfer_runtime.ops.linear.cases import WEIGHT_FORMATS
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS, decode_records, from_records
from ninfer_runtime.weights.synthetic import (
    NORM_SPREAD,
    SyntheticWeights,
    random_weight,
    small_values,
)

PARAMETERS = (
    LogicalParameter("text/token_embedding", (64, 128)),
    LogicalParameter("text/m/q", (32, 128), ("text/input",)),
    LogicalParameter("text/m/k", (16, 128), ("text/input",)),
    LogicalParameter("text/m/a", (3, 128), ("text/input",)),
    LogicalParameter("text/m/b", (3, 128), ("text/input",)),
    LogicalParameter("text/norm", (128,)),
    LogicalParameter("text/gdn/a_log", (3,), storage_format="fp32"),
)
FORMATS = {
    "text/token_embedding": "q6_g64_fp16",
    "text/m/q": "q4_g64_fp16",
    "text/m/k": "q4_g64_fp16",
    "text/m/a": "bf16",
    "text/m/b": "bf16",
    "text/norm": "bf16",
    "text/gdn/a_log": "fp32",
}


def downloaded(gpu, weight):
    row_scale = None if weight.row_scale is None else gpu.download(weight.row_scale)
    return gpu.download(weight.data), row_scale


def words_of(name, data, row_scale, shape):
    codes, scales = from_records(RECORD_FORMATS[name], data, shape)
    if name == "nvfp4" and scales is not None:
        return Nvfp4Words(
            codes.astype(np.uint8), scales.astype(np.uint8), (1 / row_scale[:1]).view(np.uint32)
        )
    if name == "fp8_e4m3fn_row_bf16":
        scale = (row_scale.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return Fp8RowWords(codes.astype(np.uint8), scale)
    if scales is None:
        return codes.astype(np.uint16)
    return GroupedWords(codes.astype(np.int8), scales.astype(np.uint16))


@pytest.mark.gpu
@pytest.mark.parametrize("name", WEIGHT_FORMATS)
def test_words_are_legal_and_of_the_right_size(gpu, name):
    shape = (2048, 1024)
    data, row_scale = downloaded(gpu, random_weight(gpu, name, shape, seed=3))
    codec_for(name, layout_of(name), shape).validate(words_of(name, data, row_scale, shape))
    values = decode_records(RECORD_FORMATS[name], data, row_scale, shape) * sqrt(shape[1])
    assert np.std(values) == pytest.approx(1, rel=0.01)
    # Codes of two's complement are half a step below zero on average.
    assert abs(np.mean(values)) < 0.12
    np.testing.assert_allclose(np.std(values, axis=0), 1, rtol=0.2)
    np.testing.assert_allclose(np.std(values, axis=1), 1, rtol=0.2)


@pytest.mark.gpu
def test_a_seed_decides_everything_and_names_differ(gpu):
    first, same, other = (SyntheticWeights(PARAMETERS, FORMATS, gpu, seed=s) for s in (1, 1, 2))
    weight = gpu.download(first.projections(["text/m/q"])[0].data)
    np.testing.assert_array_equal(gpu.download(same.projections(["text/m/q"])[0].data), weight)
    assert (gpu.download(other.projections(["text/m/q"])[0].data) != weight).mean() > 0.9
    assert (gpu.download(first.projections(["text/m/k"])[0].data) != weight[:1]).mean() > 0.9
    norm = gpu.to_host(first.tensor("text/norm"))
    np.testing.assert_array_equal(gpu.to_host(same.tensor("text/norm")), norm)
    assert (gpu.to_host(other.tensor("text/norm")) != norm).any()


@pytest.mark.gpu
def test_weights_change_where_formats_do(gpu):
    arrived: list[int] = []
    store = SyntheticWeights(
        PARAMETERS, FORMATS, gpu, advance=lambda num_bytes, name: arrived.append(num_bytes)
    )
    weights = store.projections(["text/m/q", "text/m/k", "text/m/a", "text/m/b"])
    assert [(weight.format, weight.shape) for weight in weights] == [
        ("q4_g64_fp16", (48, 128)),
        ("bf16", (6, 128)),
    ]
    assert store.table("text/token_embedding").shape == (64, 128)
    with pytest.raises(UnsupportedOpError, match="bf16, q4_g64_fp16"):
        store.bank(["text/m/q", "text/m/a"])
    assert store.tensor("text/norm").dtype is DType.BF16
    assert store.tensor("text/gdn/a_log").dtype is DType.FP32
    # Two matrices of three rows are two row tiles alone and one together.
    assert sum(arrived) == store.num_bytes - 16 * 128 * 2


@pytest.mark.parametrize(
    ("rows", "up", "in_turns"),
    [(24, "q4_g64_fp16", True), (20, "q4_g64_fp16", False), (24, "q5_g64_fp16", False)],
)
def test_gates_take_turns_with_what_they_gate_in_one_format(rows, up, in_turns):
    parameters = [
        LogicalParameter(f"text/m/{role}", (rows, 128), ("text/input",)) for role in ("gate", "up")
    ]
    formats = {"text/m/gate": "q4_g64_fp16", "text/m/up": up}
    store = SyntheticWeights(parameters, formats, DryGpu(TYPICAL_TARGETS["sm_90a"]))
    weight = store.gated("text/m/gate", "text/m/up")
    assert (weight.shape, weight.in_turns) == ((rows, 128), in_turns)
    assert [
        matrix.format for matrix in weight.matrices if isinstance(matrix, PackedWeight)
    ] == list(dict.fromkeys(formats.values()))


def test_values_that_are_used_as_numbers():
    rng = np.random.default_rng(5)

    def vector_values(name, shape, rng):
        return small_values(LogicalParameter(name, shape), shape, rng)

    router = LogicalParameter("text/router", (256, 2048), ("text/input",))
    assert np.std(small_values(router, (257, 2048), rng)) == pytest.approx(2048**-0.5, rel=0.01)
    decay = np.exp(vector_values("text/layers/0/gdn/a_log", (10_000,), rng))
    assert decay.min() >= 1
    assert decay.max() <= 16
    step = np.log1p(np.exp(vector_values("text/layers/0/gdn/dt_bias", (10_000,), rng)))
    assert step.min() >= 0.00099
    assert step.max() <= 0.101
    taps = vector_values("text/layers/0/gdn/convolution", (4, 10_000), rng)
    assert np.std(taps) == pytest.approx(0.5, rel=0.05)
    for name, mean in (("input_norm", 0), ("attention/query_norm", 0), ("gdn/norm", 1)):
        values = vector_values(f"text/layers/0/{name}", (10_000,), rng)
        assert np.mean(values) == pytest.approx(mean, abs=0.01)
        assert np.std(values) == pytest.approx(NORM_SPREAD, rel=0.1)


def test_a_cpu_is_refused():
    with pytest.raises(UnsupportedOpError, match="synthetic weights"):
        SyntheticWeights(PARAMETERS, FORMATS, get_device("cpu"))


class Gpu(CpuDevice):
    """The host, where no kernel is asked for."""

    kind = "cuda"


def test_formats_that_nothing_reads_are_refused_before_anything_is_made():
    with pytest.raises(UnsupportedOpError, match="text/m/q in q3 as weights"):
        SyntheticWeights(PARAMETERS, {**FORMATS, "text/m/q": "q3"}, Gpu())


def test_words_of_a_stored_format_are_not_used_as_numbers():
    store = SyntheticWeights(PARAMETERS, {**FORMATS, "text/norm": "q4_g64_fp16"}, Gpu())
    with pytest.raises(UnsupportedOpError, match="text/norm in q4_g64_fp16 to be used as numbers"):
        store.tensor("text/norm")


def test_an_unknown_recipe_is_refused_by_name():
    with pytest.raises(NInferError, match="recipe 'mine'"):
        SyntheticWeights(PARAMETERS, "mine", Gpu())
