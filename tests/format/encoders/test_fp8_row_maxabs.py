from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ninfer_format import ArtifactError, codec_for, fp8_row_maxabs

VECTORS = Path(__file__).parents[2] / "data/conformance/vectors"
CASES = json.loads((VECTORS / "fp8_row_maxabs.json").read_text())["cases"]


def source(arrays: Any, case: dict[str, Any]) -> np.ndarray:
    words = arrays[f"{case['case']}|input_bf16_words"]
    return np.asarray(words.view(ml_dtypes.bfloat16))


@pytest.mark.parametrize(
    "case", [c for c in CASES if "expect" not in c], ids=lambda case: case["case"]
)
def test_vectors_bit_for_bit(case: dict[str, Any]) -> None:
    arrays = np.load(VECTORS / "fp8_row_maxabs.npz")
    values = source(arrays, case)
    assert list(values.shape) == case["shape"]
    words = fp8_row_maxabs(values)
    assert words.codes.tobytes() == arrays[f"{case['case']}|code_words"].tobytes()
    assert words.scales.tobytes() == arrays[f"{case['case']}|scale_words"].tobytes()
    payload = codec_for("fp8_e4m3fn_row_bf16", "row_scale_v1", values.shape).encode(words)
    assert payload.tobytes() == arrays[f"{case['case']}|payload"].tobytes()
    assert payload.size == case["payload_bytes"]
    assert hashlib.sha256(payload.tobytes()).hexdigest() == case["payload_sha256"]


@pytest.mark.parametrize("case", [c for c in CASES if "expect" in c], ids=lambda case: case["case"])
def test_vectors_that_must_fail(case: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match="cannot hold row 0") as raised:
        fp8_row_maxabs(source(np.load(VECTORS / "fp8_row_maxabs.npz"), case))
    assert raised.value.category == "codec"


def test_values_are_rounded_to_bf16_first() -> None:
    arrays = np.load(VECTORS / "fp8_row_maxabs.npz")
    single = arrays["f32_to_bf16|input_f32_words"].view(np.float32)
    half = arrays["f32_to_bf16|bf16_words"].view(ml_dtypes.bfloat16)
    rounded_to_finite = np.isfinite(half)
    assert not rounded_to_finite.all(), "the vectors hold infinities too"
    for one, other in zip(single, half, strict=True):
        # A large neighbour keeps the scale away from the smallest ones, which are refused.
        if np.isfinite(other):
            words = fp8_row_maxabs(np.array([[one, 1.0]], np.float32))
            same = fp8_row_maxabs(np.array([[other, 1.0]], ml_dtypes.bfloat16))
            assert words.codes.tobytes() == same.codes.tobytes()
            assert words.scales.tobytes() == same.scales.tobytes()
        else:
            with pytest.raises(ArtifactError, match="not finite"):
                fp8_row_maxabs(np.array([[one, 1.0]], np.float32))


def magnitudes() -> list[float]:
    """The 127 E4M3FN magnitudes from the definition, in the order of their words."""
    return [
        (m / 8 if e == 0 else 1 + m / 8) * 2.0 ** (max(e, 1) - 7)
        for e in range(16)
        for m in range(8)
    ][:127]


def nearest_code(value: float) -> int:
    """The nearest E4M3FN word, the even one of two that are equally near."""
    distances = [abs(abs(value) - magnitude) for magnitude in magnitudes()]
    near = [word for word, distance in enumerate(distances) if distance == min(distances)]
    word = next(word for word in near if len(near) == 1 or word % 2 == 0)
    return word | (0x80 if np.signbit(value) else 0)


def in_binary64(row: np.ndarray) -> tuple[list[int], int]:
    """The algorithm on one row, dividing in binary64 and searching for the nearest code."""
    x = row.astype(ml_dtypes.bfloat16).astype(np.float32)
    amax = float(np.abs(x).max())
    if amax == 0:
        return [0] * len(x), 0
    bits = int(np.float32(amax / 448).view(np.uint32))
    word = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    scale = float(np.uint32(word << 16).view(np.float32))
    inverse = np.float32(1.0 / scale)
    y = np.clip(x * inverse, np.float32(-448), np.float32(448))
    return [nearest_code(float(value)) for value in y], word


def has_no_tiny_rows(values: np.ndarray) -> bool:
    amax = np.abs(values).max(axis=1)
    return bool(((amax == 0) | (amax > 1e-30)).all())


@given(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=9),
        elements=st.floats(-(2.0**127), 2.0**127, width=32)
        | st.floats(-1, 1, width=32)
        | st.sampled_from([0.0, -0.0, 1.0625, 1.1875]),
    ).filter(has_no_tiny_rows)
)
def test_any_matrix_agrees_with_binary64(values: np.ndarray) -> None:
    words = fp8_row_maxabs(values)
    for row, codes, scale in zip(values, words.codes, words.scales, strict=True):
        assert (codes.tolist(), int(scale)) == in_binary64(row)


def test_every_tie_between_codes_goes_to_the_even_one() -> None:
    known = np.array(magnitudes())
    between = (known[1:] + known[:-1]) / 2
    row = np.concatenate([[448.0], between, -between]).astype(np.float32)[np.newaxis]
    words = fp8_row_maxabs(row)
    assert words.scales.tolist() == [0x3F80]
    even = [word + word % 2 for word in range(126)]
    assert words.codes[0, 1:].tolist() == even + [word | 0x80 for word in even]


def test_the_result_does_not_depend_on_blocks_of_rows() -> None:
    values = np.random.default_rng(1).standard_normal((900, 700))
    whole = fp8_row_maxabs(values)
    for begin, end in ((0, 1), (1, 450), (450, 900)):
        block = fp8_row_maxabs(values[begin:end])
        assert np.array_equal(block.codes, whole.codes[begin:end])
        assert np.array_equal(block.scales, whole.scales[begin:end])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, 3.4e38, 1e-40])
def test_errors_say_which_row(value: float) -> None:
    values = np.ones((5000, 128))
    values[4321] = 0
    values[4321, 70] = value
    with pytest.raises(ArtifactError, match="row 4321: "):
        fp8_row_maxabs(values)


@pytest.mark.parametrize(
    "values",
    [np.ones(4), np.ones((1, 2, 4)), np.ones((2, 4), np.int32), np.ones((0, 4)), np.ones((4, 0))],
    ids=lambda values: f"{values.dtype}-{values.shape}",
)
def test_only_floating_matrices_are_accepted(values: np.ndarray) -> None:
    with pytest.raises(ArtifactError, match="cannot be quantized") as raised:
        fp8_row_maxabs(values)
    assert raised.value.category == "codec"
