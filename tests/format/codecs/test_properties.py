"""What every codec promises, whatever the tensor: words, ranges, blocks, rows, hostile bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ninfer_format import (
    ArtifactError,
    Codec,
    Fp8RowWords,
    GroupedWords,
    Nvfp4Words,
    codec_for,
    get_format,
)
from ninfer_format.dtypes import FORMATS, DirectFormat, GroupedFormat
from ninfer_format.layouts import LAYOUTS

GROUPED = ("q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16")
DIRECT = ("bf16", "fp32", "int32")

Tensor = tuple[Codec[Any], Any]


def bits(random: np.random.Generator, dtype: Any, *shape: int) -> np.ndarray:
    """Words of any value."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(random.bytes(size), dtype).reshape(shape).copy()


@st.composite
def direct_tensors(draw: st.DrawFn) -> Tensor:
    name = draw(st.sampled_from(DIRECT))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, max_side=6))
    format_ = get_format(name)
    assert isinstance(format_, DirectFormat)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    return codec_for(name, "contiguous_le_v1", shape), bits(random, format_.word, *shape)


@st.composite
def grouped_tensors(draw: st.DrawFn) -> Tensor:
    name = draw(st.sampled_from(GROUPED))
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 270))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    format_ = get_format(name)
    assert isinstance(format_, GroupedFormat)
    scales = random.integers(0, 0x7C00, (rows, -(-columns // format_.group))).astype(np.uint16)
    scales[random.random(scales.shape) < 0.2] = 0
    codes = random.integers(format_.qmin, format_.qmax + 1, (rows, columns)).astype(np.int8)
    codes[np.repeat(scales == 0, format_.group, axis=1)[:, :columns]] = 0
    return codec_for(name, "row_split_k128_v1", (rows, columns)), GroupedWords(codes, scales)


@st.composite
def fp8_tensors(draw: st.DrawFn) -> Tensor:
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 270))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    codes = bits(random, np.uint8, rows, columns)
    codes[codes & 0x7F == 0x7F] = 0x7E
    scales = random.integers(0, 0x7F80, rows).astype(np.uint16)
    scales[random.random(rows) < 0.2] = 0
    codes[scales == 0] &= 0x80
    codec = codec_for("fp8_e4m3fn_row_bf16", "row_scale_v1", (rows, columns))
    return codec, Fp8RowWords(codes, scales)


@st.composite
def nvfp4_tensors(draw: st.DrawFn) -> Tensor:
    divisors, tiles = draw(st.sampled_from([(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1)]))
    rows, columns = 128 * divisors * tiles, 64 * draw(st.integers(1, 3))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    words = Nvfp4Words(
        random.integers(0, 16, (rows, columns)).astype(np.uint8),
        random.integers(0, 0x7F, (rows, columns // 16)).astype(np.uint8),
        random.integers(1, 0x7F800000, divisors).astype(np.uint32),
    )
    layout = "block_scale_k16_m128x4_v1"
    return codec_for("nvfp4", layout, (rows, columns), divisors=divisors), words


MATRICES = grouped_tensors() | fp8_tensors() | nvfp4_tensors()
TENSORS = direct_tensors() | MATRICES


def arrays(words: Any) -> list[np.ndarray]:
    if isinstance(words, np.ndarray):
        return [words]
    return [getattr(words, field.name) for field in fields(words)]


def with_arrays(words: Any, others: list[np.ndarray]) -> Any:
    """Words of the same kind made of other arrays."""
    return others[0] if isinstance(words, np.ndarray) else type(words)(*others)


def same(found: Any, wanted: Any) -> bool:
    """Whether words are the same bit for bit."""
    return all(
        (one.shape, one.dtype, one.tobytes()) == (other.shape, other.dtype, other.tobytes())
        for one, other in zip(arrays(found), arrays(wanted), strict=True)
    )


def cut(codec: Codec[Any], words: Any, begin: int, end: int) -> Any:
    """Words of rows inside one matrix of a stack."""
    if isinstance(words, np.ndarray):
        return words[begin:end]
    if isinstance(words, Nvfp4Words):
        matrix = begin // (codec.rows // codec.divisors)
        divisors = words.divisors[matrix : matrix + 1]
        return Nvfp4Words(words.codes[begin:end], words.scales[begin:end], divisors)
    return type(words)(words.codes[begin:end], words.scales[begin:end])


def draw_range(data: st.DataObject, count: int) -> tuple[int, int]:
    begin = data.draw(st.integers(0, count))
    return begin, data.draw(st.integers(begin, count))


def test_every_format_and_layout_has_a_codec() -> None:
    shapes = {"contiguous_le_v1": (2, 3, 4)}
    rates = {"exl3_mul1": 4}
    found = set()
    for layout in LAYOUTS.values():
        for name in layout.formats:
            codec = codec_for(
                name,
                layout.name,
                shapes.get(layout.name, (128, 128)),
                bitrate_half_bits=rates.get(name),
            )
            assert (codec.format, codec.layout) == (name, layout.name)
            found.add(name)
    assert found == set(FORMATS)
    assert len(found) == 11


@given(TENSORS)
def test_words_survive(tensor: Tensor) -> None:
    codec, words = tensor
    payload = codec.encode(words)
    assert payload.shape == (codec.geometry.num_bytes,)
    assert same(codec.decode_words(payload), words)
    codec.validate(words)
    codec.verify(payload)
    assert codec.decode(payload).shape == codec.shape


@given(TENSORS)
def test_words_in_any_memory_order_are_encoded_the_same(tensor: Tensor) -> None:
    codec, words = tensor
    ordered = [array.copy(order="F") for array in arrays(words)]
    spread = [np.repeat(array[..., np.newaxis], 2, axis=-1)[..., 0] for array in arrays(words)]
    for others in (ordered, spread):
        assert codec.encode(with_arrays(words, others)).tobytes() == codec.encode(words).tobytes()


@given(TENSORS, st.data())
def test_a_range_is_a_slice_of_the_whole(tensor: Tensor, data: st.DataObject) -> None:
    codec, words = tensor
    payload = codec.encode(words)
    whole = codec.decode(payload).reshape(-1)
    begin, end = draw_range(data, whole.size)
    found = codec.decode_range(payload, begin, end)
    assert found.dtype == whole.dtype
    assert found.tobytes() == whole[begin:end].tobytes()


@given(TENSORS, st.data())
def test_a_block_is_a_part_of_the_matrix(tensor: Tensor, data: st.DataObject) -> None:
    codec, words = tensor
    payload = codec.encode(words)
    if len(codec.shape) != 2:
        with pytest.raises(ArtifactError, match="not a matrix"):
            codec.decode_block(payload, (0, 1), (0, 1))
        return
    rows, columns = (draw_range(data, count) for count in codec.shape)
    found = codec.decode_block(payload, rows, columns)
    wanted = codec.decode(payload)[slice(*rows), slice(*columns)]
    assert (found.shape, found.tobytes()) == (wanted.shape, wanted.tobytes())


@given(TENSORS)
def test_an_odd_address_changes_nothing(tensor: Tensor) -> None:
    codec, words = tensor
    payload = codec.encode(words)
    odd = np.concatenate([np.zeros(1, np.uint8), payload])[1:]
    assert same(codec.decode_words(odd), words)
    assert codec.decode(odd).tobytes() == codec.decode(payload).tobytes()
    assert codec.decode(odd).flags.aligned


@given(TENSORS, st.data())
def test_blocks_of_rows_and_padding_add_up_to_the_object(
    tensor: Tensor, data: st.DataObject
) -> None:
    codec, words = tensor
    block = codec.row_block or 1
    in_matrix = codec.rows // codec.divisors
    edges = set(range(0, codec.rows + 1, in_matrix))
    edges |= {block * cut for cut in data.draw(st.sets(st.integers(0, codec.rows // block)))}
    written: dict[int, np.ndarray] = {}
    payload = np.full(codec.geometry.num_bytes, 0xEE, np.uint8)
    for begin, end in data.draw(st.permutations(list(pairwise(sorted(edges))))):
        rows = cut(codec, words, begin, end) if codec.shape else words
        for piece in codec.encode_rows(rows, begin):
            assert piece.data.size
            if piece.offset in written:
                assert piece.shared, "only shared pieces are written again"
                assert np.array_equal(written[piece.offset], piece.data)
            written[piece.offset] = piece.data
            payload[piece.offset : piece.offset + piece.data.size] = piece.data
    for offset, length in codec.padding:
        assert set(payload[offset : offset + length]) == {0xEE}, "padding is written once"
        payload[offset : offset + length] = 0
    assert payload.tobytes() == codec.encode(words).tobytes()


@given(TENSORS, st.data())
def test_a_slice_of_rows_is_a_tensor_of_its_own(tensor: Tensor, data: st.DataObject) -> None:
    codec, words = tensor
    payload = codec.encode(words)
    if not codec.shape:
        assert codec.row_block is None
        with pytest.raises(ArtifactError, match="a scalar has no rows"):
            codec.row_slice(0, 1)
        return
    assert codec.row_block is not None
    in_matrix = codec.rows // codec.divisors
    first = in_matrix * data.draw(st.integers(0, codec.divisors - 1))
    begin, end = draw_range(data, in_matrix // codec.row_block)
    begin, end = first + begin * codec.row_block, first + end * codec.row_block
    if begin == end:
        with pytest.raises(ArtifactError) as raised:
            codec.row_slice(begin, end)
        assert raised.value.category == "codec"
        return
    rows = codec.row_slice(begin, end)
    assert rows.codec.shape == (end - begin, *codec.shape[1:])
    copied = np.zeros(rows.codec.geometry.num_bytes, np.uint8)
    for span in rows.spans:
        assert span.length
        data_bytes = payload[span.source : span.source + span.length]
        copied[span.target : span.target + span.length] = data_bytes
    sliced = codec.slice_rows(payload, begin, end)
    assert copied.tobytes() == sliced.tobytes()
    assert sliced.tobytes() == rows.codec.encode(cut(codec, words, begin, end)).tobytes()
    rows.codec.verify(sliced)
    whole = codec.decode(payload)
    assert rows.codec.decode(sliced).tobytes() == whole[begin:end].tobytes()


@given(direct_tensors() | grouped_tensors() | fp8_tensors(), st.data())
def test_gathered_rows_are_a_tensor_of_their_own(tensor: Tensor, data: st.DataObject) -> None:
    codec, words = tensor
    payload = codec.encode(words)
    if not codec.shape:
        with pytest.raises(ArtifactError, match="cannot be gathered"):
            codec.gather_rows(payload, [0])
        return
    index = data.draw(st.lists(st.integers(0, codec.rows - 1), min_size=1, max_size=9))
    resized = codec_for(codec.format, codec.layout, (len(index), *codec.shape[1:]))
    chosen = [array[index] for array in arrays(words)]
    wanted = resized.encode(with_arrays(words, chosen))
    assert codec.gather_rows(payload, index).tobytes() == wanted.tobytes()
    assert codec.gather_rows(payload, np.array(index, np.uint8)).tobytes() == wanted.tobytes()


def test_errors_in_a_slice_count_rows_as_in_the_object() -> None:
    codec = codec_for("q8_g32_fp16", "row_split_k128_v1", (9, 64))
    payload = codec.encode(GroupedWords(np.ones((9, 64), np.int8), np.ones((9, 2), np.uint16)))
    payload[7 * 128 + 3] = 0x80
    outer = codec.row_slice(4, 9)
    inner = outer.codec.row_slice(2, 5)
    sliced = outer.codec.slice_rows(codec.slice_rows(payload, 4, 9), 2, 5)
    with pytest.raises(ArtifactError, match=r"code at \[7, 3\]"):
        inner.codec.verify(sliced)
    words = codec.decode_words(payload)
    with pytest.raises(ArtifactError, match=r"code at \[7, 3\]"):
        outer.codec.encode_rows(GroupedWords(words.codes[6:8], words.scales[6:8]), 2)


@pytest.mark.parametrize(
    "rows", [[], [-1], [3], [0, 1, 3], [0.0], [[0]], [True, False, True]], ids=str
)
def test_rows_that_cannot_be_gathered_are_refused(rows: Any) -> None:
    codec = codec_for("bf16", "contiguous_le_v1", (3, 2))
    with pytest.raises(ArtifactError, match="gather") as raised:
        codec.gather_rows(np.zeros(12, np.uint8), rows)
    assert raised.value.category == "codec"


def test_the_rows_that_can_be_gathered_are_named() -> None:
    codec = codec_for("bf16", "contiguous_le_v1", (3, 2))
    with pytest.raises(ArtifactError, match=r"expected 0 to 2, found 2 to 7"):
        codec.gather_rows(np.zeros(12, np.uint8), [2, 7])


def all_codecs() -> st.SearchStrategy[Codec[Any]]:
    """A small tensor of any format, those with own test files included."""
    rates = st.sampled_from([2, 3, 8, 16])
    rows = st.builds(
        lambda rows, groups: codec_for("q4_g32_fp16_rows", "row_group_v1", (rows, 32 * groups)),
        st.integers(1, 4),
        st.integers(1, 3),
    )
    trellis = st.builds(
        lambda rate, stack: codec_for(
            "exl3_mul1",
            "trellis_t16_v1",
            (128 * stack, 128),
            divisors=stack,
            bitrate_half_bits=rate,
        ),
        rates,
        st.integers(1, 2),
    )
    return TENSORS.map(lambda tensor: tensor[0]) | rows | trellis


def outcome(call: Callable[[], Any]) -> Any:
    """The result of a call, None if it refused an illegal word or padding."""
    try:
        return call()
    except ArtifactError as error:
        if error.category != "codec":
            raise
        return None


@given(all_codecs(), st.integers(0, 2**32))
def test_any_bytes_decode_or_are_refused(codec: Codec[Any], seed: int) -> None:
    payload = bits(np.random.default_rng(seed), np.uint8, codec.geometry.num_bytes)
    values = outcome(lambda: codec.decode(payload))
    assert values is None or values.shape == codec.shape
    words = outcome(lambda: codec.decode_words(payload))
    assert (words is None) == (values is None)
    assert codec.judges_words or words is not None


@given(TENSORS, st.data())
def test_a_changed_byte_is_a_changed_word_or_is_found(tensor: Tensor, data: st.DataObject) -> None:
    codec, words = tensor
    payload = codec.encode(words)
    position = data.draw(st.integers(0, payload.size - 1))
    payload[position] ^= data.draw(st.integers(1, 255))

    def verified() -> Any:
        codec.verify(payload)
        return codec.decode_words(payload)

    found = outcome(verified)
    if found is not None:
        assert not same(found, words)
        assert codec.encode(found).tobytes() == payload.tobytes()


@given(all_codecs(), st.sampled_from([-1, 1, 256]))
def test_a_payload_of_another_length_is_refused(codec: Codec[Any], extra: int) -> None:
    payload = np.zeros(codec.geometry.num_bytes + extra, np.uint8)
    for call in (
        codec.decode,
        codec.decode_words,
        codec.verify,
        lambda payload: codec.decode_range(payload, 0, 0),
        lambda payload: codec.decode_block(payload, (0, 0), (0, 0)),
        lambda payload: codec.slice_rows(payload, 0, codec.row_block or 1),
        lambda payload: codec.gather_rows(payload, [0]),
    ):
        with pytest.raises(ArtifactError, match="wrong length") as raised:
            call(payload)
        assert raised.value.category == "codec"


@given(MATRICES, st.integers(-2, 400), st.integers(-2, 400))
def test_ranges_outside_the_matrix_are_refused(tensor: Tensor, begin: int, end: int) -> None:
    codec, words = tensor
    payload = codec.encode(words)
    calls = {
        "element": (
            lambda: codec.decode_range(payload, begin, end),
            codec.shape[0] * codec.shape[1],
        ),
        "row": (lambda: codec.decode_block(payload, (begin, end), (0, 1)), codec.shape[0]),
        "column": (lambda: codec.decode_block(payload, (0, 1), (begin, end)), codec.shape[1]),
    }
    for what, (call, count) in calls.items():
        if 0 <= begin <= end <= count:
            call()
        else:
            with pytest.raises(ArtifactError, match=f"{what} range is outside") as raised:
                call()
            assert raised.value.category == "codec"
