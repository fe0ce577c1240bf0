from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ninfer_format import codec_for, get_format, grouped_absmax
from ninfer_format.dtypes import GroupedFormat
from ninfer_quant.errors import ConversionError, RecipeError
from ninfer_quant.methods.registry import METHODS, find_method
from ninfer_quant.methods.request import MethodInput, MethodRequest, Target, first_nonfinite
from ninfer_quant.pipeline.statistics import ErrorSums
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.model import Model
from ninfer_quant.sources.logical import ArraySource

GROUPED = ("q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16")

matrices = arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 140)),
    elements=st.one_of(
        st.floats(-1, 1, width=32),
        # Scales down to the smallest binary16 numbers, where rounding is coarsest.
        st.floats(-(2.0**-18), 2.0**-18, width=32),
        st.floats(-60000, 60000, width=32),
    ),
)


@pytest.mark.parametrize("name", GROUPED)
@given(matrices)
def test_no_encoding_leaves_the_bound_of_grouped_absmax(name: str, values: np.ndarray):
    codec = codec_for(name, "row_split_k128_v1", values.shape)
    stored = codec.decode(codec.encode(grouped_absmax(values, name)))
    bound = find_method("grouped_absmax").error_bound(values, name)
    assert bound.shape == values.shape
    assert (np.abs(stored - values) <= bound).all()


@pytest.mark.parametrize("name", GROUPED)
def test_the_bound_of_grouped_absmax_finds_one_wrong_step(name: str):
    format_ = get_format(name)
    assert isinstance(format_, GroupedFormat)
    values = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    words = grouped_absmax(values, name)
    words.codes[2, 100] += 1 if words.codes[2, 100] < 0 else -1
    codec = codec_for(name, "row_split_k128_v1", values.shape)
    stored = codec.decode(codec.encode(words))
    wrong = np.abs(stored - values) > find_method("grouped_absmax").error_bound(values, name)
    # A step towards zero may also end nearer to the value, if it was rounded outwards.
    assert wrong.sum() <= 1
    words.codes[2, 100] += 2 if words.codes[2, 100] < 0 else -2
    stored = codec.decode(codec.encode(words))
    wrong = np.abs(stored - values) > find_method("grouped_absmax").error_bound(values, name)
    assert np.argwhere(wrong).tolist() == [[2, 100]]


def test_the_bound_of_cast_direct_is_the_rounding_itself():
    values = np.array([1.0, 1.0 + 2**-9, -3.0e-40, 0.0], np.float32)
    bound = find_method("cast_direct").error_bound(values, "bf16")
    rounded = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(bound, np.abs(rounded - values))
    assert bound[0] == bound[3] == 0
    assert bound[1] == 2**-9
    assert not find_method("cast_direct").error_bound(values, "fp32").any()
    numbers = np.array([1.5, -2.25, 7.0])
    assert find_method("cast_direct").error_bound(numbers, "int32").tolist() == [0.5, 0.25, 0]


def test_an_unknown_method_is_refused():
    with pytest.raises(RecipeError, match="known are cast_direct, grouped_absmax"):
        find_method("nvfp4")
    assert {"cast_direct", "grouped_absmax", "import_encoded"} <= METHODS.keys()


# --- requests ------------------------------------------------------------------------------


def request_over(*arrays_: np.ndarray, rows_per_chunk: int = 2) -> MethodRequest:
    inputs = tuple(
        MethodInput(f"text/p{index}", array.shape, 0, ArraySource(array, f"t{index}"), {})
        for index, array in enumerate(arrays_)
    )
    rows = sum(len(array) for array in arrays_)
    target = Target("weight/000000", (rows, arrays_[0].shape[1]), "bf16", "contiguous_le_v1")
    return MethodRequest(
        target, inputs, parameters={}, rows_per_chunk=rows_per_chunk, auxiliary_overrides={}
    )


def test_values_run_across_parts():
    first = np.arange(6, dtype=np.float32).reshape(3, 2)
    second = np.arange(10, 14, dtype=np.float32).reshape(2, 2)
    request = request_over(first, second)
    assert request.values(4, 8).tolist() == [4, 5, 10, 11]
    assert request.values(0, 10).tolist() == [0, 1, 2, 3, 4, 5, 10, 11, 12, 13]
    assert list(request.chunks()) == [(0, 2), (2, 4), (4, 5)]
    assert [(part.parameter, *span) for part, *span in request.spans(4, 8)] == [
        ("text/p0", 4, 6),
        ("text/p1", 0, 2),
    ]


def test_parts_of_different_types_meet_in_the_wider_one():
    first = np.ones((1, 2), ml_dtypes.bfloat16)
    second = np.full((1, 2), 1 + 2**-20, np.float32)
    values = request_over(first, second).values(0, 4)
    assert values.dtype == np.float32
    assert values[3] == np.float32(1 + 2**-20)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ((np.float16, ml_dtypes.bfloat16), np.float32),
        ((ml_dtypes.bfloat16, np.float16, np.float32), np.float32),
        ((np.float16, np.float64, ml_dtypes.bfloat16), np.float64),
        ((np.float16, np.float16), np.float16),
    ],
)
def test_parts_of_any_float_types_can_meet(dtypes: tuple[type, ...], expected: type):
    parts: list[np.ndarray] = [
        np.full((1, 2), index + 0.5, dtype) for index, dtype in enumerate(dtypes)
    ]
    values = request_over(*parts).values(0, 2 * len(parts))
    assert values.dtype == expected
    assert values.tolist() == [index + 0.5 for index in range(len(parts)) for _ in range(2)]


def test_the_last_chunk_is_kept_until_it_is_released():
    array = np.zeros((2, 2), np.float32)
    request = request_over(array)
    before = request.values(0, 4).copy()
    array[0, 0] = 5
    np.testing.assert_array_equal(request.values(0, 2), [5, 0])
    request.release()
    assert before[0] == 0
    assert request.values(0, 4)[0] == 5


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
)
def test_the_first_value_that_is_not_finite_is_found(dtype: type):
    values: np.ndarray = np.ones(100, dtype)
    assert first_nonfinite(values) is None
    values[60] = np.nan
    assert first_nonfinite(values) == 60
    if dtype is not ml_dtypes.float8_e4m3fn:
        values[40] = -np.inf
        assert first_nonfinite(values) == 40


def test_integers_are_always_finite():
    assert first_nonfinite(np.arange(3)) is None


def test_an_index_counts_from_the_start_of_the_parameter(fake_model: Callable[..., Model]):
    model = fake_model({"text/a": (8, 64)})
    values = np.zeros((8, 64), np.float32)
    values[6, 3] = np.nan
    recipe = Recipe(model)
    recipe.assign("text/a", source=ArraySource(values, "tensor"))
    recipe.assign("text/a", rows=(5, 8))
    piece = recipe.selections["text/a"][1]
    part = MethodInput("text/a", (8, 64), piece.first_element, piece.values(), {})
    target = Target("weight/000000", (3, 64), "bf16", "contiguous_le_v1")
    request = MethodRequest(
        target, (part,), parameters={}, rows_per_chunk=1, auxiliary_overrides={}
    )
    assert request.values(0, 64).shape == (64,)
    with pytest.raises(ConversionError, match=r"'tensor': nan at index \[6, 3\] of parameter"):
        request.values(64, 128)


# --- statistics ----------------------------------------------------------------------------


@given(arrays(np.float32, st.integers(1, 50), elements=st.floats(-(2.0**60), 2.0**60, width=32)))
def test_error_sums_equal_norms(values: np.ndarray):
    stored = np.zeros_like(values)
    sums = ErrorSums()
    sums.add(values[:7], stored[:7])
    sums.add(values[7:], stored[7:])
    wide = values.astype(np.float64)
    assert sums.squared_error == pytest.approx(float(wide @ wide), rel=1e-12)
    assert sums.max_error == np.abs(values).max()
    assert sums.relative_frobenius == (1 if sums.squared_value else 0)
    assert sums.sqnr_db == (0 if sums.squared_value else None)


def test_exact_values_have_no_noise():
    sums = ErrorSums()
    values = np.array([1.0, -2.0], np.float32)
    sums.add(values, values.copy())
    assert (sums.relative_frobenius, sums.sqnr_db, sums.max_error) == (0, None, 0)
