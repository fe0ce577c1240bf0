"""Records keep every word, and kernels that follow weight_record.cuh find the right values in them."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer_format.codecs.small_floats import E2M1_VALUES, E4M3FN_VALUES
from ninfer_runtime.ops.linear.weight_records import (
    RECORD_FORMATS,
    RecordFormat,
    decode_records,
    from_records,
    to_records,
)

FORMATS = pytest.mark.parametrize("record_format", RECORD_FORMATS.values(), ids=lambda f: f.name)


def random_words(record_format: RecordFormat, N: int, K: int, rng: np.random.Generator):
    """Codes and scales of every kind of value, finite where they are scales."""
    bits, groups = record_format.code_bits, record_format.groups
    if bits == 16:
        codes = rng.integers(0, 1 << 16, (N, K), np.uint16)
    elif record_format.name == "nvfp4":
        codes = rng.integers(0, 16, (N, K), np.uint8)
    elif record_format.name.startswith("fp8"):
        codes = rng.integers(0, 256, (N, K), np.uint8)
    else:
        codes = rng.integers(-(1 << bits - 1), 1 << bits - 1, (N, K), np.int8)
    if not groups:
        return codes, None
    shape = (N, -(-K * groups // 64))
    if record_format.scale_bytes == 1:
        return codes, rng.integers(0, 0x7F, shape, np.uint8)
    return codes, rng.integers(0, 0x7C00, shape, np.uint16)


@FORMATS
@pytest.mark.parametrize(("N", "K"), [(32, 256), (1, 64), (17, 192), (50, 100)])
def test_every_word_survives(record_format, rng, N, K):
    if record_format.name == "nvfp4" and K % 64:
        K = 128
    codes, scales = random_words(record_format, N, K, rng)
    data = to_records(record_format, codes, scales)
    tiles, records = -(-N // 16), record_format.records(K)
    assert data.shape == (tiles, records, record_format.record_bytes)
    assert record_format.record_bytes % 16 == 0
    found_codes, found_scales = from_records(record_format, data, (N, K))
    np.testing.assert_array_equal(found_codes, codes)
    if scales is None:
        assert found_scales is None
    else:
        np.testing.assert_array_equal(found_scales, scales)


@FORMATS
def test_every_bit_of_a_record_counts(record_format, rng):
    data = rng.integers(0, 256, (1, 2, record_format.record_bytes), np.uint8)
    codes, scales = from_records(record_format, data, (16, 128))
    if record_format.code_bits < 16:
        codes = codes.astype(np.int8 if codes.min() < 0 else np.uint8)
    np.testing.assert_array_equal(to_records(record_format, codes, scales), data)


def f16(words):
    return np.asarray(words, np.uint32).astype(np.uint16).view(np.float16).astype(np.float64)


def u32(value):
    return np.uint32(value)


def rotated(word, bits):
    return word >> u32(bits) | word << u32((32 - bits) % 32) if bits else word


def q5_register(words, step, j):
    """Register j of a step, without its scales."""
    if j < 3 or step < 3:
        word, code = (words[step], j) if j < 3 else (words[4], step)
        place = (0, 5, step if j < 3 else 4)[code]
        if code == 2:
            word = word >> u32(10 - place)
        word = word & u32(0x001F001F << place)
    else:
        place = 5
        word = u32(0)
        for i in range(5):
            word |= words[i] >> u32(10 - i) & u32(0x00200020 << i)
    word ^= u32(0x64006400 | 0x00100010 << place)
    values = np.array([f16(word & u32(0xFFFF)), f16(word >> u32(16))])
    return tuple(values / 2**place - (1024 / 2**place + 16))


def fragment(record_format, record, lane, step):
    """The four A registers of a lane and step, by the operations of the kernel: pairs of values."""
    name = record_format.name
    g = lane // 4
    words = np.ascontiguousarray(record[:512]).view("<u4")
    v = words[lane * 4 + step]
    even, odd = u32(0x000F000F), u32(0x00F000F0)
    registers = []
    for j in range(4):
        low = v if j < 2 else v >> u32(8)
        if name == "q4_g64_fp16":
            magic, base = (0x64086408, 1032) if j % 2 == 0 else (0x64806480, 1024 + 128)
            word = (low & (even if j % 2 == 0 else odd)) ^ u32(magic)
        elif name == "q5_g64_fp16":
            fifth = np.ascontiguousarray(record[512:]).view("<u4")[lane]
            registers.append(q5_register([*words[lane * 4 :][:4], fifth], step, j))
            continue
        elif name == "q6_g64_fp16":
            high = np.ascontiguousarray(record[512:]).view("<u4")
            pair = 2 * (step % 2) + j // 2
            h = rotated(high[2 * lane + step // 2], 2 * pair + 2 * (pair & 2))
            if j % 2 == 0:
                word = (low & even) | ((h & u32(0x00300030)) ^ u32(0x64206420))
                base = 1024 + 32
            else:
                word = (low & odd) | ((h & u32(0x03000300)) ^ u32(0x66006600))
                base = 1024 + 16 * 32
        elif name == "nvfp4":
            word = [
                v & u32(0x8E008E00),
                (v << u32(9)) & u32(0x8E008E00),
                ((v << u32(7)) & u32(0x80008000)) | ((v << u32(6)) & u32(0x0E000E00)),
                ((v << u32(8)) & u32(0x80008000)) | ((v >> u32(3)) & u32(0x0E000E00)),
            ][j]
            base = 0
        else:
            halves = np.ascontiguousarray(record[:1024]).view("<u4")
            pair = halves[(step // 2) * 128 + lane * 4 + 2 * (step % 2) + j // 2] >> u32(
                16 * (j % 2)
            )
            b0, b1 = pair & u32(0xFF), pair >> u32(8) & u32(0xFF)
            if name == "q8_g32_fp16":
                word, base = u32(0x64006400) | b0 | b1 << u32(16), 1152
            elif name == "bf16":
                parts = np.ascontiguousarray(record).view("<u4")
                word = parts[step * 128 + lane * 4 + j]
                registers.append(((word << u32(16)), word & u32(0xFFFF0000)))
                continue
            else:
                registers.append((E4M3FN_VALUES[b0], E4M3FN_VALUES[b1]))
                continue
        values = np.array([f16(word & u32(0xFFFF)), f16(word >> u32(16))]) - base
        scaled_up = base and j % 2 == 1 and record_format.code_bits < 8
        registers.append(tuple(values / 16 if scaled_up else values))
    if name == "bf16":
        return [tuple(np.array(pair, np.uint32).view(np.float32)) for pair in registers]
    factor = 2.0**14 if name == "nvfp4" else 1.0
    scales = np.ones((2,))
    at = record_format.record_bytes - 16 * record_format.groups * record_format.scale_bytes
    if name == "nvfp4":
        pair = record[at + 8 * g + 2 * step : at + 8 * g + 2 * step + 2]
        scales = E4M3FN_VALUES[pair].astype(np.float64)
    elif record_format.groups:
        halves = np.ascontiguousarray(record[at:]).view("<u2")
        group = step // 2 if record_format.groups == 2 else 0
        scales = f16(halves[(record_format.groups * g + group) * 2 :][:2])
    return [tuple(np.array(pair) * factor * scales[j % 2]) for j, pair in enumerate(registers)]


@FORMATS
def test_the_kernels_decoding_yields_the_values(record_format, rng):
    """Register j of lane 4g+q: row g + 8(j&1), columns 16 step + 2q + 8(j>>1) and the next."""
    codes, scales = random_words(record_format, 16, 128, rng)
    if record_format.name == "bf16":
        codes &= np.uint16(0xBFFF)
    data = to_records(record_format, codes, scales)
    expected = decode_records(record_format, data, None, (16, 128)).astype(np.float64)
    for record in range(2):
        for lane in range(32):
            g, q = lane // 4, lane % 4
            for step in range(4):
                registers = fragment(record_format, data[0, record], lane, step)
                for j, pair in enumerate(registers):
                    column = 64 * record + 16 * step + 2 * q + 8 * (j >> 1)
                    wanted = expected[g + 8 * (j & 1), column : column + 2]
                    np.testing.assert_array_equal(np.array(pair, np.float64), wanted)


def test_values_are_codes_times_scales(rng):
    """The decoding that the other test compares with, stated once more."""
    record_format = RECORD_FORMATS["nvfp4"]
    codes, scales = random_words(record_format, 16, 64, rng)
    divisor = np.full(16, 0.5, np.float32)
    values = decode_records(
        record_format, to_records(record_format, codes, scales), divisor, (16, 64)
    )
    for row, column in ((0, 0), (3, 17), (15, 63)):
        scale = E4M3FN_VALUES[scales[row, column // 16]]
        assert values[row, column] == E2M1_VALUES[codes[row, column]] * scale * 0.5
