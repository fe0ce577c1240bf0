from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ninfer_runtime.kv.formats import KV_FORMATS
from ninfer_runtime.kv.hadamard import transform_rows
from ninfer_runtime.kv.row_codecs import BF16, FP8, FP16, INT8, NVFP4

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def row(**components):
    values = np.zeros((1, 256), np.float32)
    for place, value in components.items():
        values[0, int(place[1:])] = value
    return values


def bf16_rows(rng, spread=1.0):
    values = spread * rng.standard_normal((50, 3, 256)).astype(np.float32)
    values[..., ::17] *= 20
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.mark.parametrize("spread", [1e-3, 1, 300])
def test_int8_is_within_half_a_step_of_each_group(rng, spread):
    rows = bf16_rows(rng, spread)
    codes, scales = INT8.encode(rows)
    assert codes.dtype == np.int8
    assert scales.shape == (50, 3, 4)
    largest = np.abs(rows.reshape(50, 3, 4, 64)).max(axis=-1)
    np.testing.assert_array_equal(scales, (largest / 127).astype(np.float16))
    error = np.abs(INT8.decode(codes, scales) - rows).reshape(50, 3, 4, 64)
    # Half a step, and what the rounding of the scale loses at the largest code.
    assert (error <= largest[..., None] * (0.5 / 127 + 2**-10) + 1e-7).all()


def test_int8_rounds_halves_to_even_and_never_gives_minus_128():
    codes, scales = INT8.encode(row(_0=127, _1=0.5, _2=1.5, _3=-2.5, _4=-127, _64=-1))
    assert scales[0, 0] == 1
    assert codes[0, :5].tolist() == [127, 0, 2, -2, -127]
    assert codes[0, 64] == -127
    assert scales[0, 2:].tolist() == [0, 0]
    assert not codes[0, 128:].any()


@pytest.mark.parametrize("spread", [1e-3, 1, 300])
def test_fp8_keeps_four_significant_bits(rng, spread):
    rows = bf16_rows(rng, spread)
    codes, scales = FP8.encode(rows)
    assert scales.shape == (50, 3, 1)
    largest = np.abs(rows).max(axis=-1, keepdims=True)
    error = np.abs(FP8.decode(codes, scales) - rows)
    assert (error <= np.abs(rows) * 2**-4 + largest / 448 * 2**-9).all()


def test_fp8_of_a_row_of_zeros_is_positive_zero():
    rows = np.full((1, 256), -0.0, np.float32)
    codes, scales = FP8.encode(rows)
    assert not codes.any()
    assert scales.tobytes() == b"\0\0"


def test_fp8_of_a_tiny_row_has_the_smallest_scale():
    codes, scales = FP8.encode(row(_7=1e-30))
    assert scales[0, 0] == np.float16(2**-24)
    assert not codes.any()


def test_nvfp4_takes_the_nearest_value_of_its_group(rng):
    rows = bf16_rows(rng)
    codes, scales = NVFP4.encode(rows)
    assert codes.shape == (50, 3, 128)
    factors = scales.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    grid = factors[..., None, None] * np.concatenate((-E2M1, E2M1))
    distance = np.abs(grid - rows.reshape(50, 3, 16, 16)[..., None]).min(axis=-1)
    error = np.abs(NVFP4.decode(codes, scales) - rows).reshape(50, 3, 16, 16)
    np.testing.assert_allclose(error, distance, rtol=1e-5, atol=1e-6)


def test_nvfp4_packs_the_lower_component_into_the_low_nibble():
    codes, scales = NVFP4.encode(row(_0=6, _1=-0.5, _2=0.25, _3=0.75, _17=3))
    assert codes[0, :2].tolist() == [7 | 9 << 4, 0 | 2 << 4]  # ties: 0.25 to 0, 0.75 to 1
    assert scales.view(ml_dtypes.float8_e4m3fn)[0, :3].astype(float).tolist() == [1, 0.5, 0]
    assert codes[0, 8] == 7 << 4


def test_fp16_saturates_and_bf16_is_exact(rng):
    (stored,) = FP16.encode(row(_0=1e38, _1=-70000, _2=1 + 2**-11))
    assert FP16.decode(stored)[0, :3].tolist() == [65504, -65504, 1]
    rows = bf16_rows(rng)
    np.testing.assert_array_equal(BF16.decode(*BF16.encode(rows)), rows)


def test_the_transform_is_the_hadamard_matrix_and_its_own_inverse(rng):
    index = np.arange(256)
    matrix = (-1.0) ** np.bitwise_count(index[:, None] & index) / 16
    np.testing.assert_array_equal(transform_rows(np.eye(256)), matrix)
    rows = bf16_rows(rng)
    np.testing.assert_allclose(transform_rows(rows), rows @ matrix, atol=1e-4)
    np.testing.assert_allclose(transform_rows(transform_rows(rows)), rows, atol=1e-4)
    assert transform_rows(rows).dtype == np.float32


def test_formats_have_their_bytes_and_transforms():
    def row_bytes(row_format):
        codec = row_format.codec
        planes = codec.encode(np.zeros((1, 256), np.float32))
        return sum(plane.nbytes for plane in planes)

    found = {
        name: (
            row_bytes(each.key) + row_bytes(each.value),
            each.key.transformed,
            each.value.transformed,
        )
        for name, each in KV_FORMATS.items()
    }
    assert found == {
        "bf16": (1024, False, False),
        "int8": (528, True, False),
        "fp8": (516, True, False),
        "nvfp4": (288, True, True),
        "k8v4": (402, True, True),
    }
