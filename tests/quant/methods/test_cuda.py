"""The encoders on a GPU give the words that they give on a CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import ml_dtypes
import numpy as np
import pytest

from ninfer_quant.array_module import array_module, own_stream, to_binary32, to_host
from ninfer_quant.methods.registry import find_method
from ninfer_quant.sources.words import MatrixWords, word_values

from .conftest import Calibrate, CollectingOutput, request_for

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

EXACT = [
    ("grouped_absmax", "q4_g64_fp16"),
    ("grouped_absmax", "q8_g32_fp16"),
    ("grouped_mse", "q5_g64_fp16"),
    ("q4_rows_maxabs", "q4_g32_fp16_rows"),
    ("fp8_row_maxabs", "fp8_e4m3fn_row_bf16"),
    ("nvfp4_absmax", "nvfp4"),
    ("nvfp4_ratio", "nvfp4"),
    ("nvfp4_four_over_six", "nvfp4"),
    ("nvfp4_mse", "nvfp4"),
]


def run_on(
    device: str, method: str, format_name: str, values: np.ndarray, **options
) -> MatrixWords:
    request = request_for(format_name, [values], **options)
    request.device = "cuda" if device == "cuda" else "cpu"
    output = CollectingOutput()
    find_method(method).plan(request).produce(output)
    return output.words


def matrix(kind: str) -> np.ndarray:
    generator = np.random.default_rng(8)
    normal = generator.standard_normal((512, 768)).astype(np.float32)
    match kind:
        case "wide":
            return np.ldexp(normal, generator.integers(-60, 3, normal.shape))
        case "ties":
            values = generator.integers(-24, 25, normal.shape).astype(np.float32) / 4
            values[:, 0] = 672
            return values
        case "small":
            # Values and scales of rows are subnormal numbers, which a GPU may take for zero.
            return normal * np.float32(2.0**-112)
        case _:
            return normal.astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("kind", ["bf16", "wide", "ties", "small"])
@pytest.mark.parametrize(("method", "format_name"), EXACT)
def test_words_are_the_same_bit_for_bit(method: str, format_name: str, kind: str):
    values = matrix(kind)
    expected = run_on("cpu", method, format_name, values)
    for rows in (512, 128):
        found = run_on("cuda", method, format_name, values, rows_per_chunk=rows)
        for field in fields(expected):
            np.testing.assert_array_equal(
                getattr(found, field.name), getattr(expected, field.name), err_msg=field.name
            )


@pytest.mark.parametrize(
    ("method", "format_name"), [("nvfp4_gptq", "nvfp4"), ("grouped_gptq", "q4_g64_fp16")]
)
def test_error_feedback_is_as_good(calibrate: Calibrate, method: str, format_name: str):
    """Sums of products are rounded in another order, so a few codes may differ."""
    generator = np.random.default_rng(3)
    root = generator.standard_normal((32, 768))
    inputs = (generator.standard_normal((2000, 32)) @ root).astype(np.float32)
    inputs += generator.standard_normal(inputs.shape).astype(np.float32)
    inputs[:, 9] = 0
    parameters = {"calibration": calibrate(inputs)}
    values = generator.standard_normal((512, 768)).astype(np.float32)
    words = {
        device: run_on(device, method, format_name, values, parameters=parameters)
        for device in ("cpu", "cuda")
    }
    errors = {
        device: np.square(inputs @ (word_values(format_name, found) - values).T).sum()
        for device, found in words.items()
    }
    assert errors["cuda"] == pytest.approx(errors["cpu"], rel=0.01)
    same = run_on("cuda", method, format_name, values, parameters=parameters, rows_per_chunk=128)
    np.testing.assert_array_equal(
        word_values(format_name, same), word_values(format_name, words["cuda"])
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_values_arrive_unchanged(dtype: type):
    xp = array_module("cuda")
    values: np.ndarray = np.random.default_rng(1).standard_normal((7, 33)).astype(dtype)
    found = to_host(xp, to_binary32(xp, values))
    np.testing.assert_array_equal(found, values.astype(np.float32))


@pytest.mark.parametrize(
    ("method", "format_name"), [("grouped_absmax", "q4_g64_fp16"), ("nvfp4_mse", "nvfp4")]
)
def test_workers_beside_each_other_do_not_disturb_each_other(method: str, format_name: str):
    generator = np.random.default_rng(3)
    matrices = [
        generator.standard_normal((rows, 512)).astype(ml_dtypes.bfloat16)
        for rows in generator.integers(1, 8, 40) * 128
    ]

    def encode(values: np.ndarray) -> MatrixWords:
        with own_stream("cuda"):
            return run_on("cuda", method, format_name, values)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(encode, matrices))
    for words, values in zip(found, matrices, strict=True):
        expected = run_on("cpu", method, format_name, values)
        for field in fields(expected):
            np.testing.assert_array_equal(getattr(words, field.name), getattr(expected, field.name))
