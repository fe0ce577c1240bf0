// Keys and values of new tokens on their way into pages. Lane l of a warp holds components 8l .. 8l+7
// of a row.
#pragma once
#include "ninfer/elements.cuh"
#include "ninfer/hadamard.cuh"
#include "ninfer/kv_rows.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

constexpr float E4M3_LARGEST = 448.f;

// To e4m3, to nearest even; larger values become the largest. Without the hardware's conversion, so
// that every device and the reference give the same bits.
NINFER_DEVICE u32 float_to_e4m3(float x) {
  const u32 sign = __float_as_uint(x) >> 24 & 0x80;
  const float magnitude = fminf(fabsf(x), E4M3_LARGEST);
  if (magnitude < 0.015625f) return sign | (u32)rintf(magnitude * 512.f);  // subnormal
  const u32 bits = __float_as_uint(magnitude);
  const u32 rounded = bits + 0x7ffff + (bits >> 20 & 1);
  return sign | ((rounded >> 20) - (120 << 3));
}

NINFER_DEVICE float e4m3_to_float(u32 code) {
  const u32 magnitude = code & 0x7f;
  if (magnitude < 8) return magnitude * (1.f / 512);
  return __uint_as_float((magnitude << 20) + (120u << 23));
}

// To e2m1, to nearest even; larger values become the largest.
NINFER_DEVICE u32 float_to_e2m1(float x) {
  const float m = fabsf(x);
  const u32 magnitude = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) +
                        (m >= 3.5f) + (m > 5.f);
  return (__float_as_uint(x) >> 28 & 8) | magnitude;
}

NINFER_DEVICE float largest_component(const float* x) {
  float largest = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(x[i]));
  return largest;
}

// Codes one row, spread over a warp, and writes it as row `row` of the planes.
template <int C>
NINFER_DEVICE void store_row(const float* x, u8* codes, u8* scales, i64 row, int lane) {
  using Shape = RowShape<C>;
  u8* code = codes + row * Shape::CODE_BYTES + lane * (Shape::CODE_BYTES / 32);
  u8* scale = scales + row * Shape::SCALE_BYTES;
  if constexpr (C <= ROWS_FP16) {
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      u32 half[2];
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const float v = x[2 * i + j];
        half[j] =
            C == ROWS_BF16 ? float_to_bf16(v) : float_to_f16(fminf(fmaxf(v, -65504.f), 65504.f));
      }
      words[i] = half[0] | half[1] << 16;
    }
    *(uint4*)code = make_uint4(words[0], words[1], words[2], words[3]);
  } else if constexpr (C == ROWS_NVFP4) {
    const float largest = warp_max<2>(largest_component(x));
    const u32 s = largest == 0.f ? 0 : float_to_e4m3(fmaxf(largest / 6.f, 0.001953125f));
    const float divisor = e4m3_to_float(s);
    u32 word = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
      word |= (largest == 0.f ? 0 : float_to_e2m1(x[i] / divisor)) << (4 * i);
    *(u32*)code = word;
    if (lane % 2 == 0) scale[lane / 2] = (u8)s;
  } else {
    constexpr int LANES = C == ROWS_INT8 ? 8 : 32;  // of a group
    const float largest = warp_max<LANES>(largest_component(x));
    float wanted = largest / 127.f;
    if constexpr (C == ROWS_FP8)
      wanted = largest == 0.f ? 0.f : fminf(fmaxf(largest / E4M3_LARGEST, 5.9604645e-8f), 65504.f);
    const u16 s = float_to_f16(wanted);
    const float wide = f16_to_float(s), inverse = wide == 0.f ? 0.f : 1.f / wide;
    u32 words[2] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      u32 byte;
      if constexpr (C == ROWS_INT8)
        byte = (u32)(int)fminf(fmaxf(rintf(x[i] * inverse), -127.f), 127.f) & 0xff;
      else
        byte = largest == 0.f ? 0 : float_to_e4m3(x[i] * inverse);
      words[i / 4] |= byte << (i % 4 * 8);
    }
    *(uint2*)code = make_uint2(words[0], words[1]);
    if (lane % LANES == 0) *(u16*)(scale + lane / LANES * 2) = s;
  }
}

// Rounds a key or value row, spread over a warp, to bf16 and writes it, coded, as row `row`.
template <int C, bool TRANSFORMED>
NINFER_DEVICE void append_row(float* x, u8* codes, u8* scales, i64 row, int lane) {
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] = bf16_to_float(float_to_bf16(x[i]));
  if constexpr (TRANSFORMED) hadamard_256(x, lane);
  store_row<C>(x, codes, scales, row, lane);
}

template <int KC>
NINFER_DEVICE void append_key(float* x, u8* codes, u8* scales, i64 row, int lane) {
  append_row<KC, KC != ROWS_BF16>(x, codes, scales, row, lane);
}
template <int VC>
NINFER_DEVICE void append_value(float* x, u8* codes, u8* scales, i64 row, int lane) {
  append_row<VC, VC == ROWS_NVFP4>(x, codes, scales, row, lane);
}

}  // namespace ninfer
