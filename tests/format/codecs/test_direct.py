from __future__ import annotations

from math import prod
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


def codec(name: str) -> Any:
    return codec_for(name, "contiguous_le_v1")


@given(st.data(), st.sampled_from(sorted(WORDS)), hnp.array_shapes(min_dims=0, max_side=5))
def test_every_word_survives(data: st.DataObject, name: str, shape: tuple[int, ...]) -> None:
    words = data.draw(hnp.arrays(WORDS[name], shape))
    payload = codec(name).encode(words, shape)
    assert payload.tobytes() == words.tobytes()
    decoded = codec(name).decode_words(payload, shape)
    assert decoded.shape == shape
    assert decoded.tobytes() == words.tobytes()
    codec(name).verify(payload, shape)


@given(hnp.arrays(np.uint16, st.integers(1, 50)))
def test_bf16_is_the_upper_half_of_binary32(words: np.ndarray) -> None:
    values = codec("bf16").decode(words.view(np.uint8), words.shape)
    assert values.dtype == np.float32
    assert values.view(np.uint32).tolist() == (words.astype(np.uint32) << 16).tolist()


def test_known_words_have_their_values() -> None:
    words = np.array([0x3F80, 0xC000, 0x8000, 0x0001, 0x7F80], np.uint16)
    values = codec("bf16").decode(words.view(np.uint8), (5,))
    assert values.tolist() == [1.0, -2.0, 0.0, 2.0**-133, float("inf")]
    assert np.signbit(values[2])
    integers = codec("int32").decode(np.array([-1, 2**31 - 1], np.int32).view(np.uint8), (2,))
    assert integers.dtype == np.int32
    assert integers.tolist() == [-1, 2**31 - 1]


@given(st.data(), hnp.array_shapes(max_dims=3, max_side=6))
def test_a_range_is_a_slice_of_the_whole(data: st.DataObject, shape: tuple[int, ...]) -> None:
    words = np.arange(prod(shape), dtype=np.uint16).reshape(shape)
    payload = codec("bf16").encode(words, shape)
    begin = data.draw(st.integers(0, words.size))
    end = data.draw(st.integers(begin, words.size))
    whole = codec("bf16").decode(payload, shape).reshape(-1)
    found = codec("bf16").decode_range(payload, shape, begin, end)
    assert np.array_equal(found, whole[begin:end])


def test_values_of_an_odd_offset_are_aligned() -> None:
    words = np.arange(6, dtype=np.uint32)
    odd = np.concatenate([np.zeros(1, np.uint8), words.view(np.uint8)])[1:]
    values = codec("fp32").decode(odd, (6,))
    assert values.flags.aligned
    assert values.tobytes() == words.tobytes()


def test_blocks_of_rows_add_up_to_the_tensor() -> None:
    words = np.arange(7 * 3 * 2, dtype=np.int32).reshape(7, 3, 2)
    payload = np.zeros(words.nbytes, np.uint8)
    for first in (4, 0, 2, 6):
        for offset, data in codec("int32").encode_rows(words[first : first + 2], (7, 3, 2), first):
            payload[offset : offset + data.size] = data
    assert payload.tobytes() == words.tobytes()
    assert codec("int32").padding((7, 3, 2)) == []


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
        codec("bf16").encode_rows(words, shape, first_row)
    assert raised.value.category == "codec"


@pytest.mark.parametrize("size", [5, 7, 0])
def test_a_payload_of_another_length_is_refused(size: int) -> None:
    for method in ("decode", "decode_words", "verify"):
        with pytest.raises(ArtifactError, match="wrong length") as raised:
            getattr(codec("bf16"), method)(np.zeros(size, np.uint8), (3,))
        assert raised.value.category == "codec"


@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (2, 1), (0, 4)])
def test_a_range_outside_the_tensor_is_refused(begin: int, end: int) -> None:
    with pytest.raises(ArtifactError, match="element range is outside"):
        codec("bf16").decode_range(np.zeros(6, np.uint8), (3,), begin, end)
