from __future__ import annotations

import numpy as np
import pytest

from ninfer_format import Nvfp4Words
from ninfer_quant.encoders import grouped, nvfp4
from ninfer_quant.encoders.error_feedback import PANEL, feed_back, feedback_of, weighted_errors
from ninfer_quant.encoders.grouped import CodeRange
from ninfer_quant.errors import ConversionError, RecipeError
from ninfer_quant.methods import grouped_gptq, nvfp4_gptq
from ninfer_quant.methods.registry import find_method
from ninfer_quant.sources.words import MatrixWords, word_values

from .conftest import Calibrate, RunMethod, request_for

Q4 = CodeRange(64, -8, 7)


def correlated_inputs(K: int, rank: int = 24, tokens: int = 1500) -> np.ndarray:
    """Inputs [T, K] whose columns depend on each other, as activations do; column 5 is dead."""
    generator = np.random.default_rng(4)
    shared = generator.standard_normal((tokens, rank)) @ generator.standard_normal((rank, K))
    inputs = (shared + 0.5 * generator.standard_normal((tokens, K))).astype(np.float32)
    inputs[:, 5] = 0
    return inputs


def weights(N: int, K: int) -> np.ndarray:
    return np.random.default_rng(9).standard_normal((N, K)).astype(np.float32)


def moments(inputs: np.ndarray) -> np.ndarray:
    wide = inputs.astype(np.float64)
    return (wide.T @ wide / len(wide)).astype(np.float32)


# --- the mathematics -----------------------------------------------------------------------------


def test_the_factor_is_that_of_the_inverse_of_the_damped_moments():
    hessian = moments(correlated_inputs(96))
    feedback = feedback_of(np, hessian)
    live = hessian.diagonal()[hessian.diagonal() > 0]
    expected = hessian.astype(np.float64)
    expected[5, 5] = live.mean(dtype=np.float64)
    expected += 0.01 * expected.diagonal().mean() * np.eye(96)
    factor = feedback.factor.astype(np.float64)
    assert not np.tril(factor, -1).any()
    np.testing.assert_allclose(factor.T @ factor @ expected, np.eye(96), atol=2e-4)
    assert np.flatnonzero(feedback.is_dead).tolist() == [5]


def in_steps(x: np.ndarray, factor: np.ndarray, step: float) -> np.ndarray:
    """Error feedback for rounding to multiples of `step`, one number at a time."""
    x = x.astype(np.float64).copy()
    U = factor.astype(np.float64)
    for row in x:
        for k in range(len(row)):
            error = (row[k] - np.rint(row[k] / step) * step) / U[k, k]
            for later in range(k + 1, len(row)):
                row[later] -= error * U[k, later]
    return x


@pytest.mark.parametrize("K", [1, 96, PANEL, PANEL + 32])
def test_panels_do_what_single_steps_do(K: int):
    hessian = moments(correlated_inputs(max(K, 6)))[:K, :K]
    feedback = feedback_of(np, hessian)
    x = weights(6, K)
    step = np.float32(0.25)
    adjusted = feed_back(np, x, feedback, lambda k, column: np.rint(column / step) * step)
    expected = in_steps(x, feedback.factor, 0.25)
    np.testing.assert_allclose(adjusted, expected, atol=2e-3)
    same = np.rint(adjusted / step) == np.rint(expected / 0.25)
    assert same.mean() > 0.99


def test_moments_of_no_input_at_all_mean_plain_rounding():
    x = weights(4, 64)
    feedback = feedback_of(np, np.zeros((64, 64), np.float32))
    assert feedback.is_dead.all()
    adjusted = feed_back(np, np.zeros_like(x), feedback, lambda k, column: column)
    assert not adjusted.any()


def test_independent_inputs_mean_plain_rounding():
    x = weights(4, 64)
    feedback = feedback_of(np, np.diag(np.arange(1, 65, dtype=np.float32)))
    adjusted = feed_back(np, x, feedback, lambda k, column: np.rint(column))
    np.testing.assert_array_equal(adjusted, x)


def test_weighted_errors_are_those_of_the_products():
    inputs = correlated_inputs(64)
    feedback = feedback_of(np, moments(inputs))
    errors = weights(3, 64)
    errors[:, 5] = 0
    products = inputs.astype(np.float64) @ errors.T.astype(np.float64)
    expected = np.square(products).mean(axis=0)
    np.testing.assert_allclose(weighted_errors(np, errors, feedback), expected, rtol=1e-4)


def test_moments_that_are_not_positive_definite_are_an_error():
    hessian = -np.eye(8, dtype=np.float32)
    with pytest.raises(ConversionError, match="not positive definite, even with damping"):
        feedback_of(np, hessian)


# --- the methods ---------------------------------------------------------------------------------


def product_error(words: MatrixWords, name: str, values: np.ndarray, inputs):
    error = word_values(name, words).astype(np.float64) - values
    return np.square(inputs.astype(np.float64) @ error.T).sum()


@pytest.mark.parametrize(
    ("method", "format_name", "others"),
    [
        ("nvfp4_gptq", "nvfp4", ("nvfp4_absmax", "nvfp4_mse")),
        ("grouped_gptq", "q4_g64_fp16", ("grouped_absmax", "grouped_mse")),
        ("grouped_gptq", "q8_g32_fp16", ("grouped_absmax", "grouped_mse")),
    ],
)
def test_the_products_are_much_nearer(
    run_method: RunMethod,
    calibrate: Calibrate,
    method: str,
    format_name: str,
    others: tuple[str, ...],
):
    inputs, values = correlated_inputs(256), weights(128, 256)
    parameters = {"calibration": calibrate(inputs)}
    words = run_method(method, format_name, values, parameters=parameters)
    found = product_error(words, format_name, values, inputs)
    for other in others:
        plain = run_method(other, format_name, values)
        assert found < 0.5 * product_error(plain, format_name, values, inputs)


def test_inputs_that_were_not_calibrated_gain_too(run_method: RunMethod, calibrate: Calibrate):
    inputs, values = correlated_inputs(256, tokens=3000), weights(128, 256)
    parameters = {"calibration": calibrate(inputs[:1500])}
    words = run_method("nvfp4_gptq", "nvfp4", values, parameters=parameters)
    plain = run_method("nvfp4_mse", "nvfp4", values)
    unseen = inputs[1500:]
    assert product_error(words, "nvfp4", values, unseen) < 0.6 * product_error(
        plain, "nvfp4", values, unseen
    )


def test_no_row_is_worse_than_plain_rounding_of_nvfp4():
    inputs, values = correlated_inputs(128, rank=2), weights(128, 128)
    feedback = feedback_of(np, moments(inputs))
    x = values * nvfp4.divisor_of(np.abs(values).max(), nvfp4.ABSMAX_RANGE)
    codes, scales = nvfp4_gptq.quantize_rows(np, x, feedback)
    live = np.where(feedback.is_dead, 0, x)
    expected = nvfp4.search_scales(np, live, nvfp4.best_of_all, feedback.diagonal)
    np.testing.assert_array_equal(scales, expected)
    plain = nvfp4.codes_under(np, live, scales)
    before, after = (
        weighted_errors(np, nvfp4.values_under(np, found, scales) - live, feedback)
        for found in (plain, codes)
    )
    assert (after <= before).all()
    kept = (codes == plain).all(axis=1)
    assert (after[~kept] < before[~kept]).all()
    assert kept.sum() < len(kept)


def test_a_row_whose_tiny_values_would_grow_keeps_plain_rounding():
    """All inputs are alike, so that a tiny block can make up for the errors of a large one."""
    inputs = np.ones((200, 64), np.float32) + correlated_inputs(64)[:200] * np.float32(1e-3)
    feedback = feedback_of(np, moments(inputs))
    x = weights(64, 64) * np.float32(100)
    x[:, 16:] = np.sign(x[:, 16:]) * np.float32(2.0**-10)
    codes, scales = nvfp4_gptq.quantize_rows(np, x, feedback)
    stored = nvfp4.values_under(np, codes, scales)
    assert np.abs(stored[:, 16:]).max() <= 2 * 2.0**-10


def test_a_row_that_does_not_gain_keeps_plain_rounding():
    """Values on the grid already: nothing can be better than them."""
    feedback = feedback_of(np, moments(correlated_inputs(64)))
    x = np.random.default_rng(1).integers(-7, 8, (4, 64)).astype(np.float32)
    x[:, 0], x[:, 5] = 7, 0
    codes, scales = grouped_gptq.quantize_rows(np, x, Q4, feedback)
    np.testing.assert_array_equal(codes, x.astype(np.int8))
    assert (scales == 1).all()


def test_dead_columns_become_zero(run_method: RunMethod, calibrate: Calibrate):
    inputs, values = correlated_inputs(64), weights(128, 64)
    parameters = {"calibration": calibrate(inputs)}
    words = run_method("nvfp4_gptq", "nvfp4", values, parameters=parameters)
    assert isinstance(words, Nvfp4Words)
    assert not words.codes[:, 5].any()
    assert words.codes[:, 6].any()


@pytest.mark.parametrize(
    ("method", "format_name"),
    [("nvfp4_gptq", "nvfp4"), ("grouped_gptq", "q4_g64_fp16"), ("grouped_gptq", "q8_g32_fp16")],
)
def test_no_word_leaves_the_bound(
    run_method: RunMethod, calibrate: Calibrate, method: str, format_name: str
):
    inputs = correlated_inputs(128, rank=1) * np.exp(np.linspace(-6, 6, 128)).astype(np.float32)
    values = weights(128, 128)
    values[:, 16:32] *= np.float32(2.0**-18)
    values[3] = 0
    parameters = {"calibration": calibrate(inputs)}
    stored = word_values(
        format_name, run_method(method, format_name, values, parameters=parameters)
    )
    bound = find_method(method).error_bound(values, format_name)
    assert (np.abs(stored - values) <= bound).all()


@pytest.mark.parametrize("method", ["nvfp4_gptq", "grouped_gptq"])
def test_a_calibration_is_needed(method: str):
    format_name = "nvfp4" if method == "nvfp4_gptq" else "q4_g64_fp16"
    with pytest.raises(RecipeError, match=f"method {method} needs the parameter calibration"):
        find_method(method).plan(request_for(format_name, [weights(128, 64)]))


def test_parameters_of_one_object_need_one_input(calibrate: Calibrate):
    parameters = {"calibration": calibrate(np.eye(64, dtype=np.float32))}
    request = request_for("nvfp4", [weights(128, 64)], parameters=parameters, uses=())
    with pytest.raises(RecipeError, match="one and the same input"):
        find_method("nvfp4_gptq").plan(request)


def test_grouped_scales_are_those_of_the_weighted_search():
    feedback = feedback_of(np, moments(correlated_inputs(128)))
    x = weights(16, 128)
    _, scales = grouped_gptq.quantize_rows(np, x, Q4, feedback)
    live = np.where(feedback.is_dead, 0, x)
    expected = grouped.search_scales(np, live, Q4, feedback.diagonal)
    np.testing.assert_array_equal(scales, expected)
