"""How the work is cut changes no byte."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from ninfer_quant.methods.registry import METHODS
from ninfer_quant.methods.request import MethodRequest, Target

from .conftest import Calibrate, RunMethod

CASES = [
    ("grouped_absmax", "q5_g64_fp16"),
    ("grouped_mse", "q4_g64_fp16"),
    ("grouped_gptq", "q6_g64_fp16"),
    ("q4_rows_maxabs", "q4_g32_fp16_rows"),
    ("fp8_row_maxabs", "fp8_e4m3fn_row_bf16"),
    ("nvfp4_absmax", "nvfp4"),
    ("nvfp4_ratio", "nvfp4"),
    ("nvfp4_four_over_six", "nvfp4"),
    ("nvfp4_mse", "nvfp4"),
    ("nvfp4_gptq", "nvfp4"),
]


def test_every_method_of_matrices_is_tested():
    assert {method for method, _ in CASES} == METHODS.keys() - {"cast_direct", "import_encoded"}


@pytest.mark.parametrize(("method", "format_name"), CASES)
def test_chunks_and_parts_change_no_word(
    run_method: RunMethod, calibrate: Calibrate, method: str, format_name: str
):
    generator = np.random.default_rng(6)
    values = generator.standard_t(3, (640, 192)).astype(np.float32)
    parameters = {}
    if method.endswith("gptq"):
        inputs = generator.standard_normal((300, 192)) @ generator.standard_normal((192, 192))
        parameters = {"calibration": calibrate(inputs.astype(np.float32))}
    whole = run_method(method, format_name, values, parameters=parameters)
    for parts, rows in (([640], 1), ([640], 200), ([130, 510], 384), ([256, 256, 128], 128)):
        pieces = np.split(values, np.cumsum(parts)[:-1])
        other = run_method(method, format_name, *pieces, rows_per_chunk=rows, parameters=parameters)
        for field in fields(whole):
            np.testing.assert_array_equal(
                getattr(other, field.name), getattr(whole, field.name), err_msg=field.name
            )


def test_chunks_are_whole_blocks_of_one_matrix():
    target = Target("weight/000000", (768, 64), "nvfp4", "block_scale_k16_m128x4_v1", divisors=2)
    request = MethodRequest(target, (), parameters={}, rows_per_chunk=300, auxiliary_overrides={})
    assert list(request.chunks()) == [(0, 256), (256, 384), (384, 640), (640, 768)]
