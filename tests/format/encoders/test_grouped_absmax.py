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

from ninfer_format import ArtifactError, codec_for, grouped_absmax

VECTORS = Path(__file__).parents[2] / "data/conformance/vectors"
CASES = json.loads((VECTORS / "grouped_absmax.json").read_text())["cases"]
ERRORS = json.loads((VECTORS / "grouped_absmax_errors.json").read_text())
FORMATS = {
    "q4_g64_fp16": (64, -8, 7),
    "q5_g64_fp16": (64, -16, 15),
    "q6_g64_fp16": (64, -32, 31),
    "q8_g32_fp16": (32, -127, 127),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_vectors_bit_for_bit(case: dict[str, Any]) -> None:
    arrays = np.load(VECTORS / "grouped_absmax.npz")
    key = case["case"].replace("/", "|")
    values = arrays[f"{key}|input_f32"]
    words = grouped_absmax(values, case["format"])
    rows, columns = values.shape
    physical = arrays[f"{key}|codes_physical"].reshape(rows, -1)
    assert np.array_equal(words.codes, physical[:, :columns])
    scales = arrays[f"{key}|scale_words_physical"]
    assert np.array_equal(words.scales, scales[:, : words.scales.shape[1]])
    payload = codec_for(case["format"], "row_split_k128_v1", values.shape).encode(words)
    assert payload.tobytes() == arrays[f"{key}|payload"].tobytes()


@pytest.mark.parametrize("case", ERRORS, ids=lambda case: case["case"])
def test_vectors_that_must_fail(case: dict[str, Any]) -> None:
    words = np.zeros(int(np.prod(case["shape"])), np.uint32)
    for index, word in case["nonzero"].items():
        words[int(index)] = int(word, 16)
    values: Any = words.view(np.float32).reshape(case["shape"])
    if case["case"] == "integer_source":
        values = words.reshape(case["shape"])
    with pytest.raises(ArtifactError) as raised:
        grouped_absmax(values, case["format"])
    assert raised.value.category == "codec"


def test_multiplying_by_the_reciprocal_is_not_dividing() -> None:
    """The example of the formats specification, section 8.1."""
    values = np.zeros((1, 64), np.float32)
    values[0, :2] = np.array([0x41A0B334, 0x417C7BFF], np.uint32).view(np.float32)
    words = grouped_absmax(values, "q4_g64_fp16")
    assert words.scales.tolist() == [[0x41BD]]
    assert words.codes[0, :2].tolist() == [7, 6]


def test_a_subnormal_scale_is_exact() -> None:
    """bf16 word 0x3636 over a whole group; an approximate division gives another word."""
    values = np.full((1, 64), 0x3636, np.uint16).view(ml_dtypes.bfloat16)
    assert grouped_absmax(values, "q4_g64_fp16").scales.tolist() == [[6]]


def in_binary64(row: np.ndarray, name: str) -> tuple[list[int], list[int]]:
    """The algorithm on one row, with the two divisions in binary64 and then rounded."""
    group, qmin, qmax = FORMATS[name]
    codes, scales = [], []
    for begin in range(0, len(row), group):
        x = row[begin : begin + group].astype(np.float32)
        amax = float(np.abs(x).max())
        if amax == 0:
            codes += [0] * len(x)
            scales.append(0)
            continue
        scale = np.float16(np.float32(amax / qmax)) or np.float16(2.0**-24)
        inverse = np.float32(1.0 / float(scale))
        rounded = [int(np.rint(np.float32(value * inverse))) for value in x]
        codes += [min(max(code, qmin), qmax) for code in rounded]
        scales.append(int(scale.view(np.uint16)))
    return codes, scales


@given(
    st.sampled_from(sorted(FORMATS)),
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=140),
        elements=st.floats(-400_000, 400_000, width=32) | st.floats(-(2**-18), 2**-18, width=32),
        fill=st.nothing(),
    )
    | hnp.arrays(np.float32, (2, 130), elements=st.floats(-1, 1, width=32)),
)
def test_any_matrix_agrees_with_binary64(name: str, values: np.ndarray) -> None:
    words = grouped_absmax(values, name)
    for row, codes, scales in zip(values, words.codes, words.scales, strict=True):
        assert (codes.tolist(), scales.tolist()) == in_binary64(row, name)


def test_the_result_does_not_depend_on_blocks_of_rows() -> None:
    values = np.random.default_rng(1).standard_normal((900, 700))
    whole = grouped_absmax(values, "q5_g64_fp16")
    for begin, end in ((0, 1), (1, 450), (450, 900)):
        block = grouped_absmax(values[begin:end], "q5_g64_fp16")
        assert np.array_equal(block.codes, whole.codes[begin:end])
        assert np.array_equal(block.scales, whole.scales[begin:end])


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_other_floating_types_are_rounded_to_binary32_first(dtype: Any) -> None:
    values = np.random.default_rng(2).standard_normal((3, 100)).astype(dtype)
    words = grouped_absmax(values, "q8_g32_fp16")
    same = grouped_absmax(values.astype(np.float32), "q8_g32_fp16")
    assert np.array_equal(words.codes, same.codes)
    assert np.array_equal(words.scales, same.scales)


def test_errors_say_where() -> None:
    values = np.ones((5000, 128))
    values[4321, 70] = np.inf
    with pytest.raises(ArtifactError, match=r"row 4321, columns 64 to 127: .* not finite"):
        grouped_absmax(values, "q4_g64_fp16")
    values[4321, 70] = 1e300
    with pytest.raises(ArtifactError, match=r"row 4321, columns 64 to 127: .* not finite"):
        grouped_absmax(values, "q4_g64_fp16")
    values[4321, 70] = 1e6
    with pytest.raises(ArtifactError, match="row 4321, columns 64 to 127: a scale beyond"):
        grouped_absmax(values, "q4_g64_fp16")


@pytest.mark.parametrize("name", ["bf16", "fp16", "nvfp4"])
def test_only_grouped_formats_are_accepted(name: str) -> None:
    with pytest.raises(ArtifactError) as raised:
        grouped_absmax(np.ones((1, 64)), name)
    assert raised.value.category == "encoding"
