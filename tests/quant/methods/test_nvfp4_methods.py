from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ninfer_format import Nvfp4Words, nvfp4_absmax
from ninfer_format.errors import CheckpointError
from ninfer_quant.encoders.nvfp4 import best_of_all, block_errors, search_scales
from ninfer_quant.errors import ConversionError, RecipeError
from ninfer_quant.methods.nvfp4_words import largest_magnitude
from ninfer_quant.methods.registry import find_method
from ninfer_quant.sources.words import word_values

from .conftest import USE, Calibrate, RunMethod, request_for

VECTORS = Path(__file__).parents[2] / "data/conformance/vectors"
CASES = [case["case"] for case in json.loads((VECTORS / "nvfp4_absmax.json").read_text())["cases"]]
SEARCHES = ("nvfp4_ratio", "nvfp4_four_over_six", "nvfp4_mse")
FULL_RANGE = {"nvfp4_four_over_six": 6 * 256}
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
E4M3 = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)


def nasty(kind: str, shape: tuple[int, int] = (128, 64)) -> np.ndarray:
    """Data on which roundings and ties are easily wrong."""
    generator = np.random.default_rng(7)
    normal = generator.standard_normal(shape).astype(np.float32)
    match kind:
        case "ties":
            # Multiples of a quarter, whose maximum gives a divisor that is a power of two.
            values = generator.integers(-24, 25, shape).astype(np.float32) / 4
            values[0, 0] = 2688 / 4
            return values
        case "zeros":
            normal[:, 16:48] = 0
            normal[3] = -0.0
            return normal
        case "wide":
            return np.ldexp(normal, generator.integers(-30, 3, shape))
        case "subnormal":
            # The smallest of them are subnormal, the divisor of the largest is just finite.
            return np.ldexp(normal, generator.integers(-140, -112, shape))
        case _:
            return normal


# --- oracles -------------------------------------------------------------------------------


def divided(name: str, values: np.ndarray) -> tuple[np.ndarray, np.float32]:
    largest = np.float32(np.abs(values).max())
    full = np.float32(FULL_RANGE.get(name, 6 * 448))
    divisor = full / largest if largest else np.float32(1)
    return values * divisor, divisor


def nearest_code(value: np.float32, scale: float) -> int:
    """Nearest E2M1 code of value/scale, ties to even, one number at a time."""
    quotient = abs(float(value / np.float32(scale))) if scale else 0.0
    distances = [abs(quotient - magnitude) for magnitude in E2M1]
    least = min(distances)
    ties = [code for code in range(8) if distances[code] == least]
    code = next((code for code in ties if code % 2 == 0), ties[0])
    return code + 8 * bool(code and value < 0)


def exact_error(block: np.ndarray, word: int, weights: np.ndarray | None = None) -> Fraction:
    """Σ h (q - x)² without any rounding."""
    total = Fraction(0)
    scale = float(E4M3[word])
    for index, value in enumerate(block):
        code = nearest_code(value, scale)
        stored = (-1 if code & 8 else 1) * Fraction(E2M1[code & 7]) * Fraction(scale)
        weight = 1 if weights is None else Fraction(float(weights[index]))
        total += weight * (stored - Fraction(float(value))) ** 2
    return total


def rounded_word(value: np.float32) -> int:
    limited = np.minimum(value, np.float32(448))
    return int(np.asarray(limited).astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


def candidates(name: str, block: np.ndarray) -> Iterator[int]:
    """Scale words in the order in which the first of equally good ones counts."""
    largest = np.abs(block).max()
    if name == "nvfp4_ratio":
        for step in range(11):
            yield rounded_word(largest / np.float32(6) * np.float32(1 - 0.05 * step))
    elif name == "nvfp4_four_over_six":
        yield rounded_word(largest / np.float32(6))
        yield rounded_word(largest / np.float32(4))
    elif largest:
        yield from range(1, 127)
    else:
        yield 0


def check_against_oracle(name: str, values: np.ndarray, words: Nvfp4Words, rows: list[int]) -> None:
    x, divisor = divided(name, values)
    assert words.divisors.tolist() == [int(np.asarray(divisor).view(np.uint32))]
    for row in rows:
        for group, block in enumerate(x[row].reshape(-1, 16)):
            errors = [(exact_error(block, word), word) for word in candidates(name, block)]
            least = min(error for error, _ in errors)
            expected = next(word for error, word in errors if error == least)
            assert words.scales[row, group] == expected
            codes = [nearest_code(value, float(E4M3[expected])) for value in block]
            assert words.codes[row, 16 * group : 16 * group + 16].tolist() == codes


@pytest.mark.parametrize("kind", ["normal", "ties", "zeros", "wide", "subnormal"])
@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_equals_exact_arithmetic_one_number_at_a_time(
    run_method: RunMethod, name: str, kind: str
):
    values = nasty(kind)
    words = run_method(name, "nvfp4", values)
    assert isinstance(words, Nvfp4Words)
    rows = [0, 3] if name == "nvfp4_mse" else [0, 3, 64, 127]
    check_against_oracle(name, values, words, rows)


def test_pruning_never_changes_the_choice_among_all_scales():
    generator = np.random.default_rng(1)
    x = generator.standard_t(2, (64, 1024)).astype(np.float32)
    x *= np.float32(2688) / np.abs(x).max()
    x[:8] *= np.float32(2.0**-12)
    x[8:16] = np.rint(x[8:16])
    x[16, :64] = 0
    weights = (generator.exponential(size=1024) ** 3).astype(np.float32)
    columns = np.abs(np.ascontiguousarray(x.reshape(-1, 16).T))
    for chosen in (None, weights):
        repeated = None if chosen is None else np.tile(chosen.reshape(64, 16).T, (1, 64))
        errors = np.stack(
            [
                block_errors(np, columns, np.full(columns.shape[1], word), repeated)
                for word in range(1, 127)
            ]
        )
        expected = np.where(columns.max(axis=0) == 0, 0, errors.argmin(axis=0) + 1)
        found = search_scales(np, x, best_of_all, chosen).reshape(-1)
        np.testing.assert_array_equal(found, expected)


# --- nvfp4_absmax ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_absmax_gives_the_conformance_words(run_method: RunMethod, case: str):
    arrays_ = np.load(VECTORS / "nvfp4_absmax.npz")
    values = arrays_[f"{case}|input_f32"]
    words = run_method("nvfp4_absmax", "nvfp4", values)
    assert isinstance(words, Nvfp4Words)
    packed = words.codes[:, ::2] | words.codes[:, 1::2] << 4
    assert packed.tobytes() == arrays_[f"{case}|packed_codes"].tobytes()
    assert words.scales.tobytes() == arrays_[f"{case}|scale_words"].tobytes()
    assert words.divisors.tobytes() == arrays_[f"{case}|divisor_word"].tobytes()


@settings(max_examples=25)
@given(
    values=arrays(
        np.float32,
        (128, 64),
        elements=st.one_of(st.floats(-8, 8, width=32), st.floats(-(2.0**-20), 2.0**-20, width=32)),
    )
)
def test_absmax_equals_the_reference_encoder(run_method: RunMethod, values: np.ndarray):
    reference = nvfp4_absmax(values) if np.abs(values).max() > 1e-35 else None
    if reference is None:
        return
    words = run_method("nvfp4_absmax", "nvfp4", values)
    assert isinstance(words, Nvfp4Words)
    np.testing.assert_array_equal(words.codes, reference.codes)
    np.testing.assert_array_equal(words.scales, reference.scales)
    np.testing.assert_array_equal(words.divisors, reference.divisors)


def test_the_divisor_belongs_to_all_inputs_of_an_object(run_method: RunMethod):
    first, second = nasty("normal"), 5 * nasty("normal")
    words = run_method("nvfp4_absmax", "nvfp4", first, second, rows_per_chunk=128)
    assert isinstance(words, Nvfp4Words)
    reference = nvfp4_absmax(np.concatenate([first, second]))
    np.testing.assert_array_equal(words.divisors, reference.divisors)
    np.testing.assert_array_equal(words.codes, reference.codes)


@settings(max_examples=50)
@given(
    values=arrays(np.float32, (3, 5), elements=st.floats(-(2.0**120), 2.0**120, width=32)),
    dtype=st.sampled_from([np.float32, np.float64, ml_dtypes.bfloat16]),
)
def test_the_largest_magnitude_of_any_type(values: np.ndarray, dtype: type):
    stored: np.ndarray = values.astype(dtype)
    assert largest_magnitude(stored) == np.abs(stored.astype(np.float32)).max()


def test_a_value_beyond_binary32_is_refused(run_method: RunMethod):
    values = nasty("normal").astype(np.float64)
    values[2, 2] = 1e39
    with pytest.raises(ConversionError, match="beyond binary32"):
        run_method("nvfp4_absmax", "nvfp4", values)


# --- quality ---------------------------------------------------------------------------------


def synthetic(kind: str) -> np.ndarray:
    generator = np.random.default_rng(3)
    shape = (256, 1024)
    match kind:
        case "gaussian":
            values = generator.standard_normal(shape)
        case "student":
            values = generator.standard_t(5, shape)
        case _:
            values = generator.laplace(size=shape)
    return values.astype(np.float32)


EXPECTED = {
    "gaussian": (0.0952, 0.0884, 0.0869, 0.0812),
    "student": (0.0921, 0.0870, 0.0865, 0.0821),
    "laplace": (0.0925, 0.0872, 0.0870, 0.0824),
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_errors_are_those_of_the_specification(run_method: RunMethod, kind: str):
    values = synthetic(kind)
    for name, expected in zip(
        ("nvfp4_absmax", "nvfp4_ratio", "nvfp4_four_over_six", "nvfp4_mse"),
        EXPECTED[kind],
        strict=True,
    ):
        stored = word_values("nvfp4", run_method(name, "nvfp4", values))
        error = np.linalg.norm(stored - values) / np.linalg.norm(values)
        assert error == pytest.approx(expected, rel=0.02), name


def test_weights_make_the_weighted_error_smaller(run_method: RunMethod, calibrate: Calibrate):
    generator = np.random.default_rng(5)
    values = generator.standard_normal((128, 64)).astype(np.float32)
    spread = np.exp(generator.normal(size=64) * 1.5).astype(np.float32)
    inputs = generator.standard_normal((500, 64)).astype(np.float32) * spread
    path = calibrate(inputs)
    moments = np.square(inputs.astype(np.float64)).mean(axis=0)

    def weighted_error(parameters: dict[str, str]) -> float:
        words = run_method("nvfp4_mse", "nvfp4", values, parameters=parameters)
        error = word_values("nvfp4", words).astype(np.float64) - values
        return float((moments * error**2).sum())

    plain = weighted_error({})
    weighted = weighted_error({"weighting": "diag", "calibration": path})
    assert weighted < 0.95 * plain
    assert weighted_error({"weighting": "none"}) == plain


def test_a_column_that_no_input_used_still_counts_for_its_scale(
    run_method: RunMethod, calibrate: Calibrate
):
    values = np.full((128, 64), 3, np.float32)
    inputs = np.ones((50, 64), np.float32)
    inputs[:, 16:32] = 0
    parameters = {"weighting": "diag", "calibration": calibrate(inputs)}
    stored = word_values("nvfp4", run_method("nvfp4_mse", "nvfp4", values, parameters=parameters))
    np.testing.assert_allclose(stored, values, rtol=0.07)


# --- bounds ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["normal", "ties", "zeros", "wide", "subnormal"])
@pytest.mark.parametrize("name", ["nvfp4_absmax", *SEARCHES])
def test_no_word_leaves_the_bound(run_method: RunMethod, name: str, kind: str):
    values = nasty(kind)
    stored = word_values("nvfp4", run_method(name, "nvfp4", values))
    bound = find_method(name).error_bound(values, "nvfp4")
    assert bound.shape == values.shape
    assert (np.abs(stored - values) <= bound).all()


def test_the_bound_finds_a_wrong_sign():
    values = nasty("normal")
    bound = find_method("nvfp4_mse").error_bound(values, "nvfp4")
    assert (np.abs(-0.5 * values - values) > bound).all()


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(64, 64), (128, 32), (130, 64)])
def test_a_shape_that_the_layout_lacks_is_refused(shape: tuple[int, int]):
    with pytest.raises(RecipeError, match="multiples of 128 rows and 64 columns"):
        find_method("nvfp4_mse").plan(request_for("nvfp4", [np.ones(shape, np.float32)]))


def test_another_format_is_refused():
    with pytest.raises(RecipeError, match="nvfp4_absmax writes nvfp4, not q4_g64_fp16"):
        find_method("nvfp4_absmax").plan(request_for("q4_g64_fp16", [nasty("normal")]))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"ratio": 2}, r"takes only weighting, calibration, found \['ratio'\]"),
        ({"weighting": "full"}, "'full' is not one of none, diag"),
        ({"weighting": "diag"}, "needs the parameter calibration"),
        ({"calibration": "c.safetensors"}, "is for weighting diag"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, object], message: str):
    with pytest.raises(RecipeError, match=message):
        find_method("nvfp4_mse").plan(
            request_for("nvfp4", [nasty("normal")], parameters=parameters)
        )


def test_values_that_are_not_finite_or_too_small_are_refused(run_method: RunMethod):
    values = nasty("normal")
    values[100, 5] = np.inf
    with pytest.raises(
        ConversionError, match=r"'t0': inf at index \[100, 5\] of parameter text/p0"
    ):
        run_method("nvfp4_mse", "nvfp4", values)
    with pytest.raises(ConversionError, match="too small for a divisor"):
        run_method("nvfp4_absmax", "nvfp4", np.full((128, 64), 1e-41, np.float32))


def test_a_calibration_of_another_model_is_refused(calibrate: Calibrate):
    path = calibrate(np.ones((4, 64), np.float32))
    parameters = {"weighting": "diag", "calibration": path}
    values = np.ones((128, 128), np.float32)
    with pytest.raises(CheckpointError, match=r"is F32 \[64\], expected F32 \[128\]"):
        find_method("nvfp4_mse").plan(request_for("nvfp4", [values], parameters=parameters))
    other = request_for("nvfp4", [nasty("normal")], parameters=parameters, uses=("text/other",))
    with pytest.raises(CheckpointError, match="the calibration has no text/other"):
        find_method("nvfp4_mse").plan(other)


def test_the_first_calibrated_of_several_inputs_counts(calibrate: Calibrate):
    parameters = {"calibration": calibrate(np.eye(64, dtype=np.float32))}
    request = request_for(
        "nvfp4", [nasty("normal")], parameters=parameters, uses=("mtp/final_hidden", USE)
    )
    find_method("nvfp4_gptq").plan(request)
