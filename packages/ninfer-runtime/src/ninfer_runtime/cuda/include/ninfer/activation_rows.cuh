// Rows of activations in the orders that the linear kernels read, and their packing.
#pragma once
#include "ninfer/elements.cuh"

namespace ninfer {

// What the f16 values of a row are divided by if the kernel that packs them sees a part of the row
// only: elements to 4e6 fit, and what is rounded to 0 or a subnormal number changes by 2^-19 at most.
constexpr float FIXED_FACTOR = 64.f;

// 2^e of a row, where e is 0 or the smallest exponent with largest * 2^-e <= 2^14. What is not
// finite stays as it is and shows in the result.
NINFER_DEVICE float packing_factor(float largest) {
  const u32 bits = __float_as_uint(largest);
  const int exponent = (int)(bits >> 23) - 127 - 14 + ((bits & 0x7fffffu) != 0);
  return exponent <= 0 || exponent > 114 ? 1.f : __uint_as_float((u32)(127 + exponent) << 23);
}

template <class T, int V>
NINFER_DEVICE float largest_of(const Pack<T, V>& v) {
  float largest = 0.f;
#pragma unroll
  for (int i = 0; i < V; i++) largest = fmaxf(largest, fabsf(v[i]));
  return largest;
}

// Lane i of four exchanges its word j for word i of lane j; the lanes of `mask` come together.
NINFER_DEVICE void transpose_over_four_lanes(u32* r, u32 mask = 15u << (threadIdx.x & 28)) {
  const u32 lane = threadIdx.x & 31;
#pragma unroll
  for (int d = 1; d < 4; d *= 2) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i & d) continue;
      // The lower lane keeps word i and gives word i + d, the upper one the other way round.
      const u32 given = lane & d ? r[i] : r[i + d];
      const u32 taken = __shfl_xor_sync(mask, given, d);
      (lane & d ? r[i] : r[i + d]) = taken;
    }
  }
}

// Where rows go that products will read. A record is 64 columns of K; `block` rows lie in memory:
// up to 8 of them as B fragments of mma.m16n8k16, [half a record][row][q][step][8 below, 8 above],
// more as tiles of `block` rows of 128 bytes, swizzled for wgmma.
struct ActivationRows {
  u32* half;            // f16, divided by the row's factor; null if nobody reads them
  float* half_factor;   // of each row
  u32* words;           // bf16 as they are; null if nobody reads them
  float* words_factor;  // of each row, always 1
  int block;

  // Stores columns k .. k+7 of a row as four pairs; k is a multiple of 8. Four neighbouring lanes, which
  // come together, hold neighbouring columns from a multiple of 32 on.
  NINFER_DEVICE void place(u32* target, int row, int k, const u32* pairs) const {
    uint4* word;
    u32 r[4] = {pairs[0], pairs[1], pairs[2], pairs[3]};
    if (block > 8) {
      word = (uint4*)target + ((k >> 6) * block + row) * 8 + ((k >> 3 & 7) ^ (row & 7));
    } else {
      transpose_over_four_lanes(r);
      word = (uint4*)target + ((k >> 5) * block + row) * 4 + (k >> 3 & 3);
    }
    *word = make_uint4(r[0], r[1], r[2], r[3]);
  }

  NINFER_DEVICE void store_half(int row, int k, const Pack<bf16, 8>& v, float inverse) const {
    u32 pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      pairs[i] = float_to_f16(v[2 * i] * inverse) | (u32)float_to_f16(v[2 * i + 1] * inverse) << 16;
    place(half, row, k, pairs);
  }

  NINFER_DEVICE void store_words(int row, int k, const Pack<bf16, 8>& v) const {
    u32 pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      pairs[i] = v.element[2 * i].bits | (u32)v.element[2 * i + 1].bits << 16;
    place(words, row, k, pairs);
  }

  // Where column k of a row lies, in words of 16 bits.
  NINFER_DEVICE u32 place_of(int row, int k) const {
    if (block > 8)
      return (((k >> 6) * block + row) * 8 + ((k >> 3 & 7) ^ (row & 7))) * 8 + (k & 7);
    return ((k >> 5) * block + row) * 32 + (k >> 1 & 3) * 8 + (k >> 3 & 3) * 2 + (k & 1);
  }

  // Stores one element wherever it will be read, as f16 with the fixed factor.
  NINFER_DEVICE void store_element(int row, int k, u16 bits) const {
    const u32 at = place_of(row, k);
    if (half) ((u16*)half)[at] = float_to_f16(bf16_to_float(bits) * (1.f / FIXED_FACTOR));
    if (words) ((u16*)words)[at] = bits;
  }

  // By one thread of a row.
  NINFER_DEVICE void store_factors(int row, float factor) const {
    if (half) half_factor[row] = factor;
    if (words) words_factor[row] = 1.f;
  }
};

}  // namespace ninfer
