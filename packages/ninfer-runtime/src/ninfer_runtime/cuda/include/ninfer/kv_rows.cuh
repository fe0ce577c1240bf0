// Rows of 256 keys or values in pages, and their expansion to pairs for the tensor cores.
//
// A 16-byte chunk of a row holds E codes. The order of elements inside a product may be any, as
// long as both operands share it, so every codec takes the order in which its codes unpack
// cheapest.
#pragma once
#include "ninfer/prelude.cuh"
#include "ninfer/weight_record.cuh"

namespace ninfer {

// Values of the codec arguments of kernels; the same numbers as in ninfer_runtime/kv/row_codecs.py.
enum RowCodec { ROWS_BF16 = 0, ROWS_FP16 = 1, ROWS_INT8 = 2, ROWS_FP8 = 3, ROWS_NVFP4 = 4 };

constexpr int HEAD_DIM = 256;

template <int C>
struct RowShape {
  static constexpr int CODE_BYTES = C <= ROWS_FP16 ? 512 : C == ROWS_NVFP4 ? 128 : 256;
  static constexpr int SCALE_BYTES = C == ROWS_INT8    ? 8
                                     : C == ROWS_FP8   ? 2
                                     : C == ROWS_NVFP4 ? 16
                                                       : 0;
  static constexpr int CHUNKS = CODE_BYTES / 16;       // of a row
  static constexpr int PER_CHUNK = HEAD_DIM / CHUNKS;  // E
};

// What expansion leaves out of every value: nvfp4 codes come out as f16 of the wrong exponent, and
// e4m3 codes too where the hardware does not convert them.
template <int C>
NINFER_DEVICE constexpr float row_factor() {
  return C == ROWS_NVFP4 ? 16384.f : C == ROWS_FP8 && !NINFER_HAS_E4M3_CONVERSION ? 256.f : 1.f;
}

// Scales multiply codes in f16, where a smaller one would lose bits: they come out in full.
NINFER_DEVICE u32 e4m3_scales_to_f16x2(u16 bytes) {
  const u32 scales = e4m3x2_to_f16x2(bytes);
  return NINFER_HAS_E4M3_CONVERSION ? scales : mul_f16x2(scales, 0x5c005c00u);
}

// Element i of the low half and of the high half of 8 packed e2m1 codes, i = 0..3: its sign three bits
// further from its other bits. Codes two apart are taken apart together.
NINFER_DEVICE u32 expand_e2m1_pair(u32 codes, int i) {
  const u32 spread = bits_of(i % 2 ? 0x80808080u : 0x08080808u, codes, rotate_right(codes, 3));
  return rotate_right(spread, (20 + 4 * i) % 32) & 0x8e008e00u;
}

// A key's chunk as fragments: the pairs b[0], b[1] of step `s` (0 .. E/4 - 1), without its scale.
template <int C>
NINFER_DEVICE void expand_key_step(const uint4& chunk, int s, u32* b) {
  if constexpr (C <= ROWS_FP16) {
    b[0] = word_of(chunk, 2 * s);
    b[1] = word_of(chunk, 2 * s + 1);
  } else if constexpr (C == ROWS_INT8) {
    const u32 v = word_of(chunk, s) ^ 0x80808080u;
    b[0] = sub_f16x2(__byte_perm(v, 0x64646464u, 0x4140), 0x64806480u);
    b[1] = sub_f16x2(__byte_perm(v, 0x64646464u, 0x4342), 0x64806480u);
  } else if constexpr (C == ROWS_FP8) {
    const u32 v = word_of(chunk, s);
    b[0] = e4m3x2_to_f16x2((u16)v);
    b[1] = e4m3x2_to_f16x2((u16)(v >> 16));
  } else {
    const u32 v = word_of(chunk, s / 2);
    b[0] = expand_e2m1_pair(v, 2 * (s % 2));
    b[1] = expand_e2m1_pair(v, 2 * (s % 2) + 1);
  }
}

// Where elements 8l .. 8l+7 of a query row must stand to meet `expand_key_step`: they are four
// pairs, pair j in word j % 2 (of b[0] or b[1]) of step `step` + j / 2 (0..15), lane `q` of the
// fragment.
struct FragmentPlace {
  int step, q;
};
template <int C>
NINFER_DEVICE FragmentPlace query_place(int lane) {
  constexpr int E = RowShape<C>::PER_CHUNK, LANES = E / 8;  // of a chunk
  return {lane / (4 * LANES) * (E / 4) + lane % LANES * 2, lane / LANES % 4};
}
// The first and the second element of pair j.
template <int C>
NINFER_DEVICE constexpr int pair_element(int j, int half) {
  return C == ROWS_NVFP4 ? j + 4 * half : 2 * j + half;
}

// Two keys' values of one element from a transposed word, without scale; i = 0 .. E/8 - 1. The word
// holds E/8 neighbouring elements of one key in its low half, of the next key in its high half.
template <int C>
NINFER_DEVICE u32 expand_value_pair(u32 word, int i) {
  if constexpr (C <= ROWS_FP16)
    return word;
  else if constexpr (C == ROWS_INT8)
    return sub_f16x2(__byte_perm(word ^ 0x80808080u, 0x64646464u, i ? 0x4341 : 0x4240),
                     0x64806480u);
  else if constexpr (C == ROWS_FP8)
    return e4m3x2_to_f16x2((u16)__byte_perm(word, 0, i ? 0x4431 : 0x4420));
  else
    return expand_e2m1_pair(word, i);
}

}  // namespace ninfer
