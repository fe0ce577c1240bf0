from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ninfer_format import ArtifactError, codec_for, nvfp4_absmax

VECTORS = Path(__file__).parents[2] / "data/conformance/vectors"
CASES = json.loads((VECTORS / "nvfp4_absmax.json").read_text())["cases"]
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_vectors_bit_for_bit(case: dict[str, Any]) -> None:
    arrays = np.load(VECTORS / "nvfp4_absmax.npz")
    values = arrays[f"{case['case']}|input_f32"]
    assert list(values.shape) == case["shape"]
    words = nvfp4_absmax(values)
    packed = words.codes[:, ::2] | words.codes[:, 1::2] << 4
    assert packed.tobytes() == arrays[f"{case['case']}|packed_codes"].tobytes()
    assert words.scales.tobytes() == arrays[f"{case['case']}|scale_words"].tobytes()
    assert words.divisors.tobytes() == arrays[f"{case['case']}|divisor_word"].tobytes()
    assert words.divisors.tolist() == [int(case["divisor_word"], 16)]
    payload = codec_for("nvfp4", "block_scale_k16_m128x4_v1", values.shape).encode(words)
    assert payload.size == case["payload_bytes"]
    assert hashlib.sha256(payload.tobytes()).hexdigest() == case["payload_sha256"]


def in_steps(values: np.ndarray) -> tuple[list[list[int]], list[list[int]], int]:
    """The algorithm one value at a time."""
    single = np.float32
    largest = single(np.abs(values.astype(single)).max())
    divisor = single(2688.0 / float(largest)) if largest else single(1)
    codes: list[list[int]] = []
    scales: list[list[int]] = []
    for row in values.astype(single) * divisor:
        codes.append([])
        scales.append([])
        for block in row.reshape(-1, 16):
            scale = min(np.abs(block).max() / single(6), single(448))
            word = scale.astype(ml_dtypes.float8_e4m3fn)
            scales[-1].append(int(word.view(np.uint8)))
            for value in block:
                v = single(0) if word == 0 else value / single(word)
                index = sum(abs(v) > (a + b) / 2 for a, b in pairwise(E2M1))
                codes[-1].append(int(index) | (8 if index and v < 0 else 0))
    return codes, scales, int(divisor.view(np.uint32))


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.sampled_from([16, 32, 48])),
        elements=st.floats(-(2.0**127), 2.0**127, width=32)
        | st.floats(-1, 1, width=32)
        | st.sampled_from([0.0, -0.0, 6.0, 0.25, 2.5, -5.0]),
        fill=st.nothing(),
    ).filter(lambda values: not values.any() or np.abs(values).max() > 1e-34)
)
def test_any_matrix_agrees_with_a_slow_encoder(values: np.ndarray) -> None:
    words = nvfp4_absmax(values)
    found = words.codes.tolist(), words.scales.tolist(), int(words.divisors[0])
    assert found == in_steps(values)


def test_ties_go_to_the_smaller_magnitude_and_zero_has_no_sign() -> None:
    """With 2688 in the first block the divisor is 1, with 6 in the second its scale is 1."""
    values = np.zeros((1, 32), np.float32)
    values[0, 0] = 2688
    values[0, 16:] = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -5, -0.25, -0.75, -0.0, 0, 7, -7, 0.3]
    values[0, 29:31] = [5.5, -5.5]
    words = nvfp4_absmax(values)
    assert words.divisors.tolist() == [0x3F800000]
    assert words.scales.tolist() == [[0x7E, 0x38]]
    assert words.codes[0, 16:].tolist() == [7, 0, 1, 2, 3, 4, 5, 6, 14, 0, 9, 0, 0, 7, 15, 1]


def test_a_block_with_a_scale_of_zero_has_zero_codes() -> None:
    values = np.full((1, 32), -1e-9, np.float32)
    values[0, 0] = 1
    words = nvfp4_absmax(values)
    assert words.scales.tolist() == [[0x7E, 0]]
    assert not words.codes[0, 1:].any()


def test_zeros_have_the_divisor_one() -> None:
    words = nvfp4_absmax(np.full((2, 16), -0.0))
    assert words.divisors.tolist() == [0x3F800000]
    assert not words.codes.any()
    assert not words.scales.any()


def test_the_divisor_is_that_of_the_whole_matrix() -> None:
    values = np.random.default_rng(1).standard_normal((900, 704))
    whole = nvfp4_absmax(values)
    largest = np.abs(values).max().astype(np.float32)
    for begin, end in ((0, 1), (1, 450), (450, 900)):
        block = nvfp4_absmax(np.concatenate([values[begin:end], np.full((1, 704), largest)]))
        assert np.array_equal(block.codes[:-1], whole.codes[begin:end])
        assert np.array_equal(block.scales[:-1], whole.scales[begin:end])
        assert np.array_equal(block.divisors, whole.divisors)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_errors_say_where(value: float) -> None:
    values = np.ones((5000, 128))
    values[4321, 70] = value
    with pytest.raises(ArtifactError, match=r"source value at \[4321, 70\] is not finite"):
        nvfp4_absmax(values)


def test_values_without_a_finite_divisor_are_refused() -> None:
    with pytest.raises(ArtifactError, match="too small for a divisor"):
        nvfp4_absmax(np.full((1, 16), 1e-36))
    assert nvfp4_absmax(np.full((1, 16), 1e-35)).codes.tolist() == [[7] * 16]


@pytest.mark.parametrize(
    "values",
    [np.ones(16), np.ones((1, 2, 16)), np.ones((2, 16), np.int32), np.ones((0, 16))],
    ids=lambda values: f"{values.dtype}-{values.shape}",
)
def test_only_floating_matrices_are_accepted(values: np.ndarray) -> None:
    with pytest.raises(ArtifactError, match="cannot be quantized") as raised:
        nvfp4_absmax(values)
    assert raised.value.category == "codec"


def test_rows_are_whole_blocks() -> None:
    with pytest.raises(ArtifactError, match="multiple of 16 columns, found 40"):
        nvfp4_absmax(np.ones((2, 40)))
