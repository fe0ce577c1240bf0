from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ninfer_format import ArtifactError, codec_for

WORDS: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype("<u2"),
    "fp32": np.dtype("<u4"),
    "int32": np.dtype("<i4"),
}


def codec(name: str, shape: tuple[int, ...]) -> Any:
    return codec_for(name, "contiguous_le_v1", shape)


@given(st.data(), st.sampled_from(sorted(WORDS)), hnp.array_shapes(min_dims=0, max_side=5))
def test_every_word_survives(data: st.DataObject, name: str, shape: tuple[int, ...]) -> None:
    words = data.draw(hnp.arrays(WORDS[name], shape))
    payload = codec(name, shape).encode(words)
    assert payload.tobytes() == words.tobytes()
    decoded = codec(name, shape).decode_words(payload)
    assert decoded.shape == shape
    assert decoded.tobytes() == words.tobytes()
    codec(name, shape).verify(payload)


@given(hnp.arrays(np.uint16, st.integers(1, 50)))
def test_bf16_is_the_upper_half_of_binary32(words: np.ndarray) -> None:
    values = codec("bf16", words.shape).decode(words.view(np.uint8))
    assert values.dtype == np.float32
    assert values.view(np.uint32).tolist() == (words.astype(np.uint32) << 16).tolist()


def test_known_words_have_their_values() -> None:
    words = np.array([0x3F80, 0xC000, 0x8000, 0x0001, 0x7F80], np.uint16)
    values = codec("bf16", (5,)).decode(words.view(np.uint8))
    assert values.tolist() == [1.0, -2.0, 0.0, 2.0**-133, float("inf")]
    assert np.signbit(values[2])
    integers = codec("int32", (2,)).decode(np.array([-1, 2**31 - 1], np.int32).view(np.uint8))
    assert integers.dtype == np.int32
    assert integers.tolist() == [-1, 2**31 - 1]


def test_values_of_an_odd_offset_are_aligned() -> None:
    words = np.arange(6, dtype=np.uint32)
    odd = np.concatenate([np.zeros(1, np.uint8), words.view(np.uint8)])[1:]
    values = codec("fp32", (6,)).decode(odd)
    assert values.flags.aligned
    assert values.tobytes() == words.tobytes()


@pytest.mark.parametrize(
    ("words", "shape", "first_row"),
    [
        pytest.param(np.zeros((2, 3), np.int16), (2, 3), 0, id="type"),
        pytest.param(np.zeros((2, 3), np.float32), (2, 3), 0, id="floats"),
        pytest.param(np.zeros((2, 4), np.uint16), (2, 3), 0, id="columns"),
        pytest.param(np.zeros((6,), np.uint16), (2, 3), 0, id="rank"),
        pytest.param(np.zeros((2, 3), np.uint16), (2, 3), 1, id="past the end"),
        pytest.param(np.zeros((1, 3), np.uint16), (2, 3), -1, id="before the start"),
    ],
)
def test_words_that_do_not_fit_are_refused(
    words: np.ndarray, shape: tuple[int, ...], first_row: int
) -> None:
    with pytest.raises(ArtifactError) as raised:
        codec("bf16", shape).encode_rows(words, first_row)
    assert raised.value.category == "codec"


@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (2, 1), (0, 4)])
def test_a_range_outside_the_tensor_is_refused(begin: int, end: int) -> None:
    with pytest.raises(ArtifactError, match="element range is outside"):
        codec("bf16", (3,)).decode_range(np.zeros(6, np.uint8), begin, end)
