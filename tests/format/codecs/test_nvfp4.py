from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_format import ArtifactError, Nvfp4Words, codec_for
from ninfer_format.codecs.small_floats import E2M1_VALUES, E4M3FN_VALUES

ONE = 0x3F800000  # 1.0 as binary32
SCALE_ONE = 0x38  # 1.0 as E4M3FN
CODE_ONE = 2  # 1.0 as E2M1


def codec(shape: tuple[int, ...], divisors: int = 1) -> Any:
    return codec_for("nvfp4", "block_scale_k16_m128x4_v1", shape, divisors=divisors)


def ones(rows: int, columns: int, divisors: int = 1) -> Nvfp4Words:
    return Nvfp4Words(
        np.full((rows, columns), CODE_ONE, np.uint8),
        np.full((rows, columns // 16), SCALE_ONE, np.uint8),
        np.full(divisors, ONE, np.uint32),
    )


@pytest.mark.parametrize(
    ("row", "group", "offset"),
    [
        (0, 0, 0),
        (0, 3, 3),
        (0, 4, 512),
        (1, 0, 16),
        (31, 0, 496),
        (32, 0, 4),
        (127, 7, 1023),
        (128, 0, 1024),
        (255, 7, 2047),
    ],
)
def test_worked_scale_offsets(row: int, group: int, offset: int) -> None:
    """The table of the layouts specification, section 4."""
    words = ones(256, 128)
    words.scales[row, group] = 0x40
    payload = codec((256, 128)).encode(words)
    scales = payload[256 * 64 : 256 * 64 + 2048]
    assert np.flatnonzero(scales == 0x40).tolist() == [offset]
    values = codec((256, 128)).decode(payload)
    assert np.argwhere(values == 2).tolist() == [[row, group * 16 + i] for i in range(16)]


def test_the_even_column_is_in_the_low_nibble() -> None:
    words = ones(128, 64)
    words.codes[1, :4] = [0x1, 0xA, 0xF, 0x3]
    payload = codec((128, 64)).encode(words)
    assert payload[32:34].tolist() == [0xA1, 0x3F]
    assert codec((128, 64)).decode(payload)[1, :4].tolist() == [0.5, -1, -6, 1.5]


def slow_decode(payload: np.ndarray, rows: int, columns: int, divisors: int) -> np.ndarray:
    """One element at a time, straight from the text of layout and format."""
    scale_at = rows * columns // 2
    divisor_at = scale_at + rows * columns // 16
    values = np.empty((rows, columns), np.float32)
    for n in range(rows):
        share = n // (rows // divisors)
        divisor = payload[divisor_at + 4 * share :][:4].view("<f4")[0]
        for k in range(columns):
            g = k // 16
            scale = payload[
                scale_at
                + (n // 128 * (columns // 64) + g // 4) * 512
                + n % 32 * 16
                + n % 128 // 32 * 4
                + g % 4
            ]
            code = payload[(n * columns + k) // 2] >> (4 * (k % 2)) & 15
            # The product is exact and binary64 is wide enough to round the quotient once.
            product = float(E2M1_VALUES[code]) * float(E4M3FN_VALUES[scale])
            values[n, k] = np.float32(product / float(divisor))
    return values


@pytest.mark.parametrize(("rows", "columns", "divisors"), [(128, 64, 1), (256, 128, 2)])
def test_values_agree_with_a_slow_decoder(rows: int, columns: int, divisors: int) -> None:
    random = np.random.default_rng(rows)
    payload = random.integers(0, 256, codec((rows, columns), divisors).geometry.num_bytes)
    payload = payload.astype(np.uint8)
    scales = payload[rows * columns // 2 :][: rows * columns // 16]
    scales[scales >= 0x7F] = 0x7E
    payload[-4 * divisors :] = np.full(divisors, 0x00012345, np.uint32).view(np.uint8)
    payload[-4:] = np.array([0.7], np.float32).view(np.uint8)
    with np.errstate(over="ignore"):
        wanted = slow_decode(payload, rows, columns, divisors)
    assert codec((rows, columns), divisors).decode(payload).tobytes() == wanted.tobytes()


def test_large_matrices_are_decoded_in_blocks_without_seams() -> None:
    random = np.random.default_rng(3)
    words = Nvfp4Words(
        random.integers(0, 16, (512, 2048)).astype(np.uint8),
        random.integers(0, 0x7F, (512, 128)).astype(np.uint8),
        np.array([0.3, 7], np.float32).view(np.uint32),
    )
    stack = codec((512, 2048), 2)
    payload = stack.encode(words)
    scales = np.repeat(E4M3FN_VALUES[words.scales], 16, axis=1)
    divisors = np.repeat(words.divisors.view(np.float32), 256)[:, np.newaxis]
    wanted = E2M1_VALUES[words.codes] * scales / divisors
    assert stack.decode(payload).tobytes() == wanted.tobytes()
    assert np.array_equal(
        stack.decode_block(payload, (77, 500), (20, 2000)), wanted[77:500, 20:2000]
    )


@given(st.integers(1, 0x7F7FFFFF), st.integers(0, 0x7E), st.integers(0, 15))
def test_the_quotient_is_rounded_once(divisor: int, scale: int, code: int) -> None:
    words = ones(128, 64)
    words.divisors[0] = divisor
    words.scales[5, 2] = scale
    words.codes[5, 40] = code
    value = codec((128, 64)).decode(codec((128, 64)).encode(words))[5, 40]
    product = float(E2M1_VALUES[code]) * float(E4M3FN_VALUES[scale])
    with np.errstate(over="ignore"):
        wanted = np.float32(product / float(np.uint32(divisor).view(np.float32)))
    assert value.tobytes() == wanted.tobytes()


def test_each_matrix_of_a_stack_has_its_divisor() -> None:
    words = ones(384, 64, divisors=3)
    words.divisors[:] = np.array([1, 2, 4], np.float32).view(np.uint32)
    payload = codec((384, 64), 3).encode(words)
    values = codec((384, 64), 3).decode(payload)
    assert values[[0, 127, 128, 255, 256, 383], 0].tolist() == [1, 1, 0.5, 0.5, 0.25, 0.25]
    block = codec((384, 64), 3).decode_block(payload, (100, 300), (3, 60))
    assert np.array_equal(block, values[100:300, 3:60])


def test_the_divisor_is_one_piece_of_all_blocks_of_its_matrix() -> None:
    """Rows of a stack are written block by block, each with the divisor of its matrix."""
    shape, stack = (512, 64), codec((512, 64), 2)
    words = ones(*shape, divisors=2)
    words.divisors[:] = np.array([3, 5], np.float32).view(np.uint32)
    payload = np.zeros(stack.geometry.num_bytes, np.uint8)
    shared = []
    for first in (384, 0, 256, 128):
        rows = slice(first, first + 128)
        block = Nvfp4Words(words.codes[rows], words.scales[rows], words.divisors[[first // 256]])
        for piece in stack.encode_rows(block, first):
            payload[piece.offset : piece.offset + piece.data.size] = piece.data
            if piece.shared:
                shared.append((piece.offset - stack.geometry.planes["divisors"].offset, first))
    assert shared == [(4, 384), (0, 0), (4, 256), (0, 128)]
    assert payload.tobytes() == stack.encode(words).tobytes()


def test_rows_are_cut_at_tiles_inside_one_matrix() -> None:
    stack = codec((512, 64), 2)
    assert stack.row_block == 128
    payload = stack.encode(ones(512, 64, 2))
    for begin, end in ((0, 64), (64, 128), (128, 384), (0, 512), (128, 128), (-128, 0), (512, 640)):
        with pytest.raises(ArtifactError) as raised:
            stack.row_slice(begin, end)
        assert raised.value.category == "codec"
        with pytest.raises(ArtifactError):
            stack.slice_rows(payload, begin, end)
        if begin < end:
            with pytest.raises(ArtifactError):
                stack.encode_rows(ones(end - begin, 64), begin)
    with pytest.raises(ArtifactError, match="cannot be gathered"):
        stack.gather_rows(payload, [0])
    assert stack.row_slice(256, 512).codec.divisors == 1


@pytest.mark.parametrize("word", [0x7F, 0x80, 0xFF])
def test_scales_outside_the_format_are_refused(word: int) -> None:
    words = ones(256, 128)
    words.scales[130, 5] = word
    payload = codec((256, 128)).encode(ones(256, 128))
    payload[256 * 64 + 1024 + 512 + 2 * 16 + 1] = word
    message = rf"illegal nvfp4 scale word at \[130, 5\].*found {word:#04x}"
    for call in (
        lambda: codec((256, 128)).validate(words),
        lambda: codec((256, 128)).encode(words),
        lambda: codec((256, 128)).decode_words(payload),
        lambda: codec((256, 128)).decode(payload),
        lambda: codec((256, 128)).decode_range(payload, 130 * 128 + 95, 130 * 128 + 96),
        lambda: codec((256, 128)).decode_block(payload, (129, 131), (90, 100)),
        lambda: codec((256, 128)).verify(payload),
    ):
        with pytest.raises(ArtifactError, match=message) as raised:
            call()
        assert raised.value.category == "codec"
    with pytest.raises(ArtifactError, match=r"scale word at \[386, 5\]"):
        codec((512, 128)).encode_rows(words, 256)
    # Rows and blocks that are not touched are not judged.
    assert (codec((256, 128)).decode_block(payload, (0, 130), (0, 128)) == 1).all()
    assert (codec((256, 128)).decode_block(payload, (0, 256), (96, 128)) == 1).all()


@pytest.mark.parametrize("word", [0, 0x80000000, 0x7F800000, 0x7FC00000, 0xBF800000])
def test_divisors_outside_the_format_are_refused(word: int) -> None:
    words = ones(256, 64, divisors=2)
    stack = codec((256, 64), 2)
    payload = stack.encode(words)
    words.divisors[1] = word
    payload[-4:] = np.array([word], np.uint32).view(np.uint8)
    message = rf"illegal nvfp4 divisor word of the matrix with row 128 .*found {word:#010x}"
    for call in (
        lambda: stack.validate(words),
        lambda: stack.decode_words(payload),
        lambda: stack.decode(payload),
        lambda: stack.decode_block(payload, (200, 201), (0, 1)),
        lambda: stack.verify(payload),
    ):
        with pytest.raises(ArtifactError, match=message):
            call()
    assert (stack.decode_block(payload, (0, 128), (0, 64)) == 1).all()
    with pytest.raises(ArtifactError, match=message):
        stack.row_slice(128, 256).codec.verify(stack.slice_rows(payload, 128, 256))


def test_codes_wider_than_four_bits_are_refused() -> None:
    words = ones(128, 64)
    words.codes[3, 7] = 16
    with pytest.raises(ArtifactError, match=r"code at \[3, 7\].*found 0x10"):
        codec((128, 64)).validate(words)


@pytest.mark.parametrize(
    ("codes", "scales", "divisors"),
    [
        pytest.param((128, 64), (128, 4), (2,), id="extra divisor"),
        pytest.param((128, 64), (128, 4), (), id="scalar divisor"),
        pytest.param((128, 64), (128, 8), (1,), id="extra groups"),
        pytest.param((128, 32), (128, 4), (1,), id="packed codes"),
        pytest.param((256, 64), (256, 4), (1,), id="extra rows"),
        pytest.param((128 * 64,), (128, 4), (1,), id="flat"),
        pytest.param((), (128, 4), (1,), id="scalar codes"),
    ],
)
def test_words_that_do_not_fit_are_refused(codes: Any, scales: Any, divisors: Any) -> None:
    words = Nvfp4Words(
        np.zeros(codes, np.uint8), np.zeros(scales, np.uint8), np.full(divisors, ONE, np.uint32)
    )
    for call in (codec((128, 64)).encode, lambda words: codec((128, 64)).encode_rows(words, 0)):
        with pytest.raises(ArtifactError) as raised:
            call(words)
        assert raised.value.category == "codec"
