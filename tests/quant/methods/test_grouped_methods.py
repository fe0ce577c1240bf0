from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ninfer_format import (
    ArtifactError,
    Fp8RowWords,
    GroupedWords,
    codec_for,
    fp8_row_maxabs,
    get_format,
    grouped_absmax,
    q4_rows_maxabs,
)
from ninfer_format.dtypes import GroupedFormat
from ninfer_format.layouts import LAYOUTS
from ninfer_quant.encoders.fp8_rows import quantize_rows
from ninfer_quant.encoders.grouped import CodeRange, absmax_scales, codes_under, search_scales
from ninfer_quant.errors import ConversionError, RecipeError
from ninfer_quant.methods.registry import find_method
from ninfer_quant.sources.words import word_values

from .conftest import RunMethod, request_for

GROUPED = ("q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16")
ROWS = "q4_g32_fp16_rows"
SINGLE, HALF = np.float32, np.float16

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


def range_of(name: str) -> CodeRange:
    format_ = get_format(name)
    assert isinstance(format_, GroupedFormat)
    return CodeRange(32, -7, 7) if name == ROWS else CodeRange.of(format_)


def make(kind: str, shape: tuple[int, int] = (6, 160)) -> np.ndarray:
    generator = np.random.default_rng(11)
    normal = generator.standard_normal(shape).astype(np.float32)
    match kind:
        case "ties":
            values = generator.integers(-14, 15, shape).astype(np.float32) / 2
            values[:, ::32] = 7
            return values
        case "zeros":
            normal[1] = -0.0
            normal[2, 64:128] = 0
            return normal
        case "tiny":
            return normal * SINGLE(2.0**-22)
        case "outliers":
            normal[:, 5] *= 20
            return normal
        case _:
            return normal


# --- grouped_mse: an oracle that looks at one number at a time ----------------------------------


def code_of(value: np.float32, scale: np.float16, codes: CodeRange) -> int:
    if scale == 0:
        return 0
    product = value * (SINGLE(1) / SINGLE(scale))
    return int(min(max(np.rint(product), codes.lowest), codes.highest))


def scale_of(largest: np.float32, codes: CodeRange) -> np.float16:
    scale = HALF(largest / SINGLE(codes.highest))
    return HALF(2.0**-24) if scale == 0 and largest > 0 else scale


def best_scale(group: np.ndarray, codes: CodeRange, weights: np.ndarray) -> np.float16:
    best, least = HALF(0), np.inf
    for step in range(33):
        scale = scale_of(np.abs(group).max() * SINGLE(1 - step / 64), codes)
        stored = [code_of(value, scale, codes) * float(scale) for value in group]
        error = float((weights * (np.array(stored) - group.astype(np.float64)) ** 2).sum())
        if error < least * (1 - 1e-12):
            best, least = scale, error
    return best


@pytest.mark.parametrize("kind", ["normal", "ties", "zeros", "tiny", "outliers"])
@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("is_weighted", [False, True])
def test_the_scale_search_equals_one_number_at_a_time(name: str, kind: str, is_weighted: bool):
    values, codes = make(kind), range_of(name)
    weights = np.ones(160, np.float32)
    if is_weighted:
        weights = np.random.default_rng(2).exponential(size=160).astype(np.float32)
    scales = search_scales(np, values, codes, weights if is_weighted else None)
    found = codes_under(np, values, scales, codes)
    for row in range(len(values)):
        for group in range(scales.shape[1]):
            columns = slice(group * codes.group, min((group + 1) * codes.group, 160))
            part = values[row, columns]
            assert scales[row, group] == best_scale(part, codes, weights[columns])
            expected = [code_of(value, scales[row, group], codes) for value in part]
            assert found[row, columns].tolist() == expected


@pytest.mark.parametrize("name", GROUPED)
def test_mse_is_never_worse_than_absmax(run_method: RunMethod, name: str):
    values = make("outliers", (8, 512))
    errors = [
        np.square(word_values(name, run_method(method, name, values)) - values).sum()
        for method in ("grouped_absmax", "grouped_mse")
    ]
    assert errors[1] <= errors[0]
    if name == "q4_g64_fp16":
        assert errors[1] < 0.9 * errors[0]


# --- the reference encoders over an array module ------------------------------------------------


@pytest.mark.parametrize("name", GROUPED)
@given(values=matrices)
def test_absmax_over_an_array_module_equals_the_reference(name: str, values: np.ndarray):
    codes = range_of(name)
    scales = absmax_scales(np, values, codes)
    reference = grouped_absmax(values, name)
    np.testing.assert_array_equal(scales.view(np.uint16), reference.scales)
    np.testing.assert_array_equal(codes_under(np, values, scales, codes), reference.codes)


@given(
    values=arrays(
        np.float32, (3, 64), elements=st.one_of(st.floats(-1, 1, width=32), st.just(2.0**-25))
    )
)
def test_q4_rows_over_an_array_module_equals_the_reference(values: np.ndarray):
    codes = range_of(ROWS)
    scales = absmax_scales(np, values, codes)
    reference = q4_rows_maxabs(values)
    np.testing.assert_array_equal(scales.view(np.uint16), reference.scales)
    np.testing.assert_array_equal(codes_under(np, values, scales, codes), reference.codes)


@given(
    values=arrays(
        np.float32,
        (3, 20),
        elements=st.one_of(
            st.floats(-500, 500, width=32),
            st.floats(-(2.0**-116), 2.0**-116, width=32),
            st.floats(-(2.0**127), 2.0**127, width=32),
        ),
    )
)
def test_fp8_rows_over_an_array_module_equal_the_reference(values: np.ndarray):
    codes, scales, is_bad = quantize_rows(np, values)
    for row in range(len(values)):
        try:
            reference = fp8_row_maxabs(values[row : row + 1])
        except ArtifactError:
            assert is_bad[row]
            continue
        assert not is_bad[row]
        np.testing.assert_array_equal(codes[row], reference.codes[0])
        assert scales[row] == reference.scales[0]


def test_fp8_keeps_the_sign_of_zero_but_not_in_a_row_of_zeros():
    values = np.array([[-0.0, 1.0, -1e-9], [-0.0, 0.0, -0.0]], np.float32)
    codes, scales, is_bad = quantize_rows(np, values)
    assert codes[0].tolist() == [0x80, 0x7E, 0x80]
    assert codes[1].tolist() == [0, 0, 0]
    assert scales[1] == 0
    assert not is_bad.any()


# --- words and bounds ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["normal", "ties", "zeros", "tiny", "outliers"])
@pytest.mark.parametrize(
    ("method", "format_name"),
    [
        *(("grouped_absmax", name) for name in GROUPED),
        *(("grouped_mse", name) for name in GROUPED),
        ("q4_rows_maxabs", ROWS),
        ("fp8_row_maxabs", "fp8_e4m3fn_row_bf16"),
    ],
)
def test_no_word_leaves_the_bound(run_method: RunMethod, method: str, format_name: str, kind: str):
    values = make(kind)
    stored = word_values(format_name, run_method(method, format_name, values))
    bound = find_method(method).error_bound(values, format_name)
    assert bound.shape == values.shape
    assert (np.abs(stored - values) <= bound).all()


@given(values=matrices)
def test_no_fp8_word_leaves_the_bound(values: np.ndarray):
    try:
        words = fp8_row_maxabs(values)
    except ArtifactError:
        return
    stored = word_values("fp8_e4m3fn_row_bf16", words)
    bound = find_method("fp8_row_maxabs").error_bound(values, "fp8_e4m3fn_row_bf16")
    assert (np.abs(stored - values) <= bound).all()


def test_bounds_find_a_code_that_is_two_steps_off(run_method: RunMethod):
    values = make("normal")
    words = run_method("q4_rows_maxabs", ROWS, values)
    assert isinstance(words, GroupedWords)
    words.codes[2, 70] += 2 if words.codes[2, 70] < 0 else -2
    wrong = np.abs(word_values(ROWS, words) - values) > find_method("q4_rows_maxabs").error_bound(
        values, ROWS
    )
    assert np.argwhere(wrong).tolist() == [[2, 70]]
    eights = run_method("fp8_row_maxabs", "fp8_e4m3fn_row_bf16", values)
    assert isinstance(eights, Fp8RowWords)
    largest = np.abs(values[3]).argmax()
    eights.codes[3, largest] -= 2
    stored = word_values("fp8_e4m3fn_row_bf16", eights)
    bound = find_method("fp8_row_maxabs").error_bound(values, "fp8_e4m3fn_row_bf16")
    assert np.argwhere(np.abs(stored - values) > bound).tolist() == [[3, largest]]


@pytest.mark.parametrize(
    ("method", "format_name"),
    [
        ("grouped_absmax", "q5_g64_fp16"),
        ("grouped_mse", "q4_g64_fp16"),
        ("q4_rows_maxabs", ROWS),
        ("fp8_row_maxabs", "fp8_e4m3fn_row_bf16"),
    ],
)
def test_words_are_legal_and_the_source_may_be_bf16(
    run_method: RunMethod, method: str, format_name: str
):
    values = make("zeros").astype(ml_dtypes.bfloat16)
    words = run_method(method, format_name, values)
    layout = next(item.name for item in LAYOUTS.values() if format_name in item.formats)
    codec_for(format_name, layout, values.shape).validate(words)
    same = run_method(method, format_name, values.astype(np.float32))
    assert isinstance(words, GroupedWords | Fp8RowWords)
    assert isinstance(same, GroupedWords | Fp8RowWords)
    np.testing.assert_array_equal(words.codes, same.codes)


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["grouped_absmax", "grouped_mse"])
def test_a_scale_beyond_binary16_is_refused(run_method: RunMethod, method: str):
    values = make("normal")
    values[4, 100] = 6e5
    with pytest.raises(ConversionError, match=r"text/p0: chunk from row 4 .* row 0, columns 64"):
        run_method(method, "q4_g64_fp16", values, rows_per_chunk=4)


@pytest.mark.parametrize(
    ("method", "format_name"),
    [
        ("grouped_mse", "bf16"),
        ("grouped_mse", ROWS),
        ("grouped_absmax", ROWS),
        ("q4_rows_maxabs", "q4_g64_fp16"),
        ("fp8_row_maxabs", "nvfp4"),
    ],
)
def test_a_method_of_another_format_is_refused(method: str, format_name: str):
    with pytest.raises(RecipeError, match=f"method {method} writes .*, not {format_name}"):
        find_method(method).plan(request_for(format_name, [make("normal")]))


def test_parameters_and_partial_groups_are_refused():
    request = request_for("q4_g64_fp16", [make("normal")], parameters={"steps": 3})
    with pytest.raises(RecipeError, match=r"takes no parameters, found \['steps'\]"):
        find_method("grouped_mse").plan(request)
    with pytest.raises(RecipeError, match="multiples of 32 columns, not 40"):
        find_method("q4_rows_maxabs").plan(request_for(ROWS, [np.ones((2, 40), np.float32)]))


def test_integers_are_no_source(run_method: RunMethod):
    with pytest.raises(ConversionError, match="source cannot be quantized"):
        run_method("grouped_mse", "q4_g64_fp16", np.ones((2, 64), np.int32))
