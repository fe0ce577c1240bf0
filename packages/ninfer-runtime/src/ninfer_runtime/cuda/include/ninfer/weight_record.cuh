// Weight records of 16 rows x 64 columns ("frag16x64") and their decoding into A fragments.
//
// Lane 4g+q holds, for each of the four steps of 16 columns, rows g and g+8 at columns 2q, 2q+1,
// 2q+8, 2q+9 of the step, in the order of the A registers of mma.m16n8k16. Integer codes become exact
// f16 integers by setting the bits of 1024 + code and subtracting; the scales multiply the sums.
// The layout is defined, with its inverse, in ninfer_runtime/ops/linear/weight_records.py.
#pragma once
#include "ninfer/mma.cuh"
#include "ninfer/prelude.cuh"

namespace ninfer {

// Values of the format argument of kernels; the same numbers as in weight_records.py.
enum WeightFormat { Q4 = 0, Q5 = 1, Q6 = 2, Q8 = 3, NVFP4 = 4, FP8 = 5, BF16 = 6 };

template <int F>
struct RecordShape {
  static constexpr int BYTES =
      F == Q4 ? 544 : F == Q5 ? 672 : F == Q6 ? 800 : F == Q8 ? 1088 : F == NVFP4 ? 576
      : F == FP8 ? 1024 : 2048;
  static constexpr int WORDS16 = F == BF16 ? 4 : F == Q8 || F == FP8 ? 2 : 1;  // 16-byte code words
  static constexpr int SCALES = F == Q8 ? 1024 : F == Q5 ? 640 : F == Q6 ? 768 : 512;  // offset
  static constexpr int GROUPS = F == Q8 ? 2 : F == NVFP4 ? 4 : F <= Q6 ? 1 : 0;  // scales per row
};

// What decoding leaves out of every value; the epilogue multiplies by it.
template <int F>
NINFER_DEVICE constexpr float record_factor() {
  return F == NVFP4 ? (NINFER_HAS_E4M3_CONVERSION ? 16384.f : 4194304.f)
         : F == FP8 && !NINFER_HAS_E4M3_CONVERSION ? 256.f
                                                   : 1.f;
}

// The words of a record that one lane needs.
template <int F>
struct LaneRecord {
  uint4 codes[RecordShape<F>::WORDS16];
  uint2 high;    // the fifth word of q5 (x), bits 4 and up of q6 codes
  uint2 scales;  // one row pair: q4, q5, q6 in x; q8 two groups; nvfp4 four groups of two bytes
};

template <int F>
NINFER_DEVICE LaneRecord<F> load_record(u32 record, int lane) {
  using Shape = RecordShape<F>;
  LaneRecord<F> r;
#pragma unroll
  for (int i = 0; i < Shape::WORDS16; i++)
    r.codes[i] = load_shared_16(record + i * 512 + lane * 16);
  r.high = make_uint2(0, 0);
  r.scales = make_uint2(0, 0);
  if constexpr (F == Q5) r.high.x = load_shared_4(record + 512 + lane * 4);
  if constexpr (F == Q6) r.high = load_shared_8(record + 512 + lane * 8);
  if constexpr (F <= Q6) r.scales.x = load_shared_4(record + Shape::SCALES + (lane >> 2) * 4);
  if constexpr (F == Q8 || F == NVFP4)
    r.scales = load_shared_8(record + Shape::SCALES + (lane >> 2) * 8);
  return r;
}

NINFER_DEVICE u32 word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Two e4m3 bytes to f16x2; without the hardware conversion the values come out 2^-8 times as large.
NINFER_DEVICE u32 e4m3x2_to_f16x2(u16 bytes) {
#if NINFER_HAS_E4M3_CONVERSION
  u32 r;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(bytes));
  return r;
#else
  const u32 spread = __byte_perm(bytes, 0, 0x1404);  // each byte into the upper half of 16 bits
  return (spread & 0x80008000u) | ((spread >> 1) & 0x3f803f80u);
#endif
}

// Signed codes of 5 bits that lie from bit `place` (0..5) of both halves on, made exact f16 integers:
// `word` has them between zeros, joined with q5_magic.
NINFER_DEVICE constexpr u32 q5_magic(int place) { return 0x64006400u | 0x00100010u << place; }
NINFER_DEVICE u32 q5_values(u32 word, int place) {
  const u32 magic = q5_magic(place), scale = place * 0x04000400u;  // divided by 2^place
  return place == 0 ? sub_f16x2(word, magic)
                    : fma_f16x2(word, 0x3c003c00u - scale, (magic - scale) ^ 0x80008000u);
}
NINFER_DEVICE u32 q5_codes(u32 word, int place) {
  return q5_values(and_xor(word, 0x001f001fu << place, q5_magic(place)), place);
}

// The A fragment of step `s` (0..3); nvfp4 values are 2^-14 times as large, without their scales.
template <int F>
NINFER_DEVICE void decode_step(const LaneRecord<F>& r, int s, u32* a) {
  if constexpr (F == Q4) {
    const u32 v = word_of(r.codes[0], s), w = v >> 8;
    a[0] = sub_f16x2(and_xor(v, 0x000f000fu, 0x64086408u), 0x64086408u);
    a[1] = fma_f16x2(and_xor(v, 0x00f000f0u, 0x64806480u), 0x2c002c00u, 0xd480d480u);
    a[2] = sub_f16x2(and_xor(w, 0x000f000fu, 0x64086408u), 0x64086408u);
    a[3] = fma_f16x2(and_xor(w, 0x00f000f0u, 0x64806480u), 0x2c002c00u, 0xd480d480u);
  } else if constexpr (F == Q5) {
    // A half of a word holds three codes and a bit of the last register's, which come together: of
    // word i the third code is shifted to bit i and the bit behind it to bit 5 + i.
    const u32 v = word_of(r.codes[0], s);
    a[0] = q5_codes(v, 0);
    a[1] = q5_codes(v, 5);
    a[2] = q5_codes(v >> (10 - s), s);
    if (s < 2) {
      a[3] = q5_codes(r.high.x, 5 * s);
    } else if (s == 2) {
      a[3] = q5_codes(r.high.x >> 6, 4);
    } else {
      u32 bits = and_xor(r.codes[0].x >> 10, 0x00200020u, q5_magic(5));
      bits = and_xor(r.codes[0].y >> 9, 0x00400040u, bits);
      bits = and_xor(r.codes[0].z >> 8, 0x00800080u, bits);
      bits = and_xor(r.codes[0].w >> 7, 0x01000100u, bits);
      bits = and_xor(r.high.x >> 6, 0x02000200u, bits);
      a[3] = q5_values(bits, 5);
    }
  } else if constexpr (F == Q6) {
    const u32 v = word_of(r.codes[0], s);
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const u32 low = j == 0 ? v : v >> 8, pair = 2 * (s & 1) + j / 2;
      const u32 h = rotate_right(s < 2 ? r.high.x : r.high.y, 2 * pair + 2 * (pair & 2));
      const u32 even = and_xor(h, 0x00300030u, 0x64206420u);
      const u32 odd = and_xor(h, 0x03000300u, 0x66006600u);
      a[j] = sub_f16x2(and_or(low, 0x000f000fu, even), 0x64206420u);
      a[j + 1] = fma_f16x2(and_or(low, 0x00f000f0u, odd), 0x2c002c00u, 0xd600d600u);
    }
  } else if constexpr (F == Q8) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const u32 v = word_of(r.codes[s / 2], 2 * (s % 2) + i);
      a[2 * i] = sub_f16x2(__byte_perm(v, 0x64646464u, 0x4140), 0x64806480u);
      a[2 * i + 1] = sub_f16x2(__byte_perm(v, 0x64646464u, 0x4342), 0x64806480u);
    }
  } else if constexpr (F == NVFP4) {
    const u32 v = word_of(r.codes[0], s);
    a[0] = v & 0x8e008e00u;
    a[1] = (v << 9) & 0x8e008e00u;
    a[2] = and_or(v << 7, 0x80008000u, (v << 6) & 0x0e000e00u);
    a[3] = and_or(v << 8, 0x80008000u, (v >> 3) & 0x0e000e00u);
  } else if constexpr (F == FP8) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const u32 v = word_of(r.codes[s / 2], 2 * (s % 2) + i);
      a[2 * i] = e4m3x2_to_f16x2((u16)v);
      a[2 * i + 1] = e4m3x2_to_f16x2((u16)(v >> 16));
    }
  } else {
    const uint4 v = r.codes[s];
    a[0] = v.x;
    a[1] = v.y;
    a[2] = v.z;
    a[3] = v.w;
  }
}

// The scales of rows g and g+8 for group `i` of the record, as f16x2.
template <int F>
NINFER_DEVICE u32 scale_pair(const LaneRecord<F>& r, int i) {
  if constexpr (F == NVFP4)
    return e4m3x2_to_f16x2((u16)((i < 2 ? r.scales.x : r.scales.y) >> (16 * (i & 1))));
  else
    return i == 0 ? r.scales.x : r.scales.y;
}

// The A fragment of a step with everything that belongs in it before the product.
template <int F>
NINFER_DEVICE void decode_scaled_step(const LaneRecord<F>& r, int s, u32* a) {
  decode_step<F>(r, s, a);
  if constexpr (F == NVFP4) {  // a code times its scale is exact in f16
    const u32 scales = scale_pair<F>(r, s);
    const u32 s0 = lower_twice(scales), s1 = upper_twice(scales);
    a[0] = mul_f16x2(a[0], s0);
    a[1] = mul_f16x2(a[1], s1);
    a[2] = mul_f16x2(a[2], s0);
    a[3] = mul_f16x2(a[3], s1);
  }
}

// acc[16, 8] += record * b, where b[2s], b[2s+1] is the B fragment of step s.
template <int F>
NINFER_DEVICE void multiply_record(float* acc, const LaneRecord<F>& r, const u32* b) {
  constexpr int GROUPS = RecordShape<F>::GROUPS;
  if constexpr (GROUPS == 0) {
#pragma unroll
    for (int s = 0; s < 4; s++) {
      u32 a[4];
      decode_step<F>(r, s, a);
      mma_16x8x16<F == BF16>(acc, a, b[2 * s], b[2 * s + 1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
      float sum[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
      for (int s = i * 4 / GROUPS; s < (i + 1) * 4 / GROUPS; s++) {
        u32 a[4];
        decode_step<F>(r, s, a);
        mma_16x8x16<false>(sum, a, b[2 * s], b[2 * s + 1]);
      }
      const u32 scales = scale_pair<F>(r, i);
      const float s0 = f16_to_float((u16)scales), s1 = f16_to_float((u16)(scales >> 16));
      acc[0] = fmaf(sum[0], s0, acc[0]);
      acc[1] = fmaf(sum[1], s0, acc[1]);
      acc[2] = fmaf(sum[2], s1, acc[2]);
      acc[3] = fmaf(sum[3], s1, acc[3]);
    }
  }
}

}  // namespace ninfer
