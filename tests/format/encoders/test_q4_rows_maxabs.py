from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ninfer_format import ArtifactError, codec_for, q4_rows_maxabs

VECTORS = Path(__file__).parents[2] / "data/conformance/vectors"
CASES = json.loads((VECTORS / "q4_rows_maxabs.json").read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_vectors_bit_for_bit(case: dict[str, Any]) -> None:
    arrays = np.load(VECTORS / "q4_rows_maxabs.npz")
    words = q4_rows_maxabs(arrays[f"{case['case']}|input_f32"])
    assert words.codes.dtype == np.int8
    assert words.codes.tolist() == arrays[f"{case['case']}|codes"].tolist()
    assert words.scales.dtype == np.uint16
    assert words.scales.tolist() == arrays[f"{case['case']}|scale_words"].tolist()
    payload = codec_for("q4_g32_fp16_rows", "row_group_v1", words.codes.shape).encode(words)
    assert payload.tobytes() == arrays[f"{case['case']}|payload"].tobytes()


def in_binary64(group: np.ndarray) -> tuple[list[int], int]:
    """The algorithm on one group, with the two divisions in binary64 and then rounded."""
    amax = float(np.abs(group).max())
    if amax == 0:
        return [0] * 32, 0
    scale = np.float16(np.float32(amax / 7)) or np.float16(2.0**-24)
    inverse = np.float32(1.0 / float(scale))
    codes = [int(np.rint(np.float32(value * inverse))) for value in group]
    return [min(max(code, -7), 7) for code in codes], int(scale.view(np.uint16))


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.sampled_from([32, 64, 160])),
        elements=st.floats(-400_000, 400_000, width=32) | st.floats(-(2**-18), 2**-18, width=32),
    )
)
def test_any_matrix_agrees_with_binary64(values: np.ndarray) -> None:
    words = q4_rows_maxabs(values)
    for row in range(values.shape[0]):
        for group in range(values.shape[1] // 32):
            columns = slice(32 * group, 32 * group + 32)
            codes, scale = in_binary64(values[row, columns])
            assert (words.codes[row, columns].tolist(), words.scales[row, group]) == (codes, scale)


def test_code_minus_8_is_never_used() -> None:
    # Seven halves of the smallest scale: it rounds down by so much that -8 would be nearest.
    values = np.full((1, 32), -7.5 * 2.0**-24, np.float32)
    words = q4_rows_maxabs(values)
    assert words.scales.tolist() == [[1]]
    assert words.codes.tolist() == [[-7] * 32]


def test_a_scale_that_rounds_to_zero_becomes_the_smallest() -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, 3] = 2.0**-26
    assert q4_rows_maxabs(values).scales.tolist() == [[1]]
    assert q4_rows_maxabs(np.zeros((1, 32), np.float32)).scales.tolist() == [[0]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39, 65520.0 * 7])
def test_values_without_a_scale_are_refused(value: float) -> None:
    values = np.ones((3, 64))
    values[2, 40] = value
    with pytest.raises(
        ArtifactError, match="q4_g32_fp16_rows cannot hold row 2, columns 32 to 63"
    ) as raised:
        q4_rows_maxabs(values)
    assert raised.value.category == "codec"


def test_the_largest_scale_is_accepted() -> None:
    values = np.full((1, 32), 65504.0 * 7, np.float32)
    assert q4_rows_maxabs(values).scales.tolist() == [[0x7BFF]]


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(np.ones((2, 33)), id="33 columns"),
        pytest.param(np.ones((2, 16)), id="16 columns"),
        pytest.param(np.ones((0, 32)), id="no rows"),
        pytest.param(np.ones((2, 0)), id="no columns"),
        pytest.param(np.ones(32), id="rank 1"),
        pytest.param(np.ones((1, 2, 32)), id="rank 3"),
        pytest.param(np.ones((2, 32), np.int32), id="integers"),
        pytest.param(np.ones((2, 32), complex), id="complex"),
    ],
)
def test_other_sources_are_refused(values: np.ndarray) -> None:
    with pytest.raises(ArtifactError) as raised:
        q4_rows_maxabs(values)
    assert raised.value.category == "codec"


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_other_floating_types_are_rounded_to_binary32_first(dtype: Any) -> None:
    values = np.random.default_rng(2).standard_normal((5, 64)).astype(dtype)
    found, expected = q4_rows_maxabs(values), q4_rows_maxabs(values.astype(np.float32))
    assert np.array_equal(found.codes, expected.codes)
    assert np.array_equal(found.scales, expected.scales)


def test_the_result_does_not_depend_on_blocks_of_rows() -> None:
    values = np.random.default_rng(1).standard_normal((4000, 160)).astype(np.float32)
    whole = q4_rows_maxabs(values)
    for begin, end in ((0, 1), (1, 2500), (2500, 4000)):
        block = q4_rows_maxabs(values[begin:end])
        assert np.array_equal(block.codes, whole.codes[begin:end])
        assert np.array_equal(block.scales, whole.scales[begin:end])
