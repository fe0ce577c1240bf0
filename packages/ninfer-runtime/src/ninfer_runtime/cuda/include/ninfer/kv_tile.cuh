// Keys and their values in shared memory, 16 of them as one product takes them, and their products with
// rows.
#pragma once
#include "ninfer/async_copy.cuh"
#include "ninfer/kv_rows.cuh"
#include "ninfer/matrices.cuh"
#include "ninfer/mma.cuh"
#include "ninfer/prelude.cuh"

namespace ninfer {

constexpr int PRODUCT_KEYS = 16;  // of one product of the tensor cores

NINFER_DEVICE void copy_or_zero_16(u32 target, const u8* source, int num_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
               "r"(num_bytes)
               : "memory");
}
// Chunks of neighbouring rows are spread over the banks, for reads of two rows by four chunks and
// of eight rows at one chunk alike.
NINFER_DEVICE constexpr u32 swizzle(u32 row) { return (row & 1) << 2 | (row >> 1 & 3); }

// The keys or values of one product in shared memory: codes with swizzled chunks, and scales.
struct ProductRows {
  u32 codes, scales;
};

// Begins to copy the rows of one product by one warp. Rows from `valid` on become zeros: what lies in
// memory there may be anything.
template <int C>
NINFER_DEVICE void copy_product(const ProductRows& target, const u8* codes, const u8* scales,
                                i64 row, int valid, u32 lane) {
  using Shape = RowShape<C>;
  constexpr u32 ROWS = 32 / Shape::CHUNKS;  // that are copied at once
  constexpr u32 SCALES = PRODUCT_KEYS * Shape::SCALE_BYTES / 16;
  const u8* source = codes + row * Shape::CODE_BYTES + lane * 16;
  const u32 own = lane / Shape::CHUNKS, chunk = lane % Shape::CHUNKS ^ swizzle(own);
  const u32 place = target.codes + own * Shape::CODE_BYTES;
  const bool is_whole = valid >= PRODUCT_KEYS;
  if (is_whole) {
#pragma unroll
    for (u32 r = 0; r < PRODUCT_KEYS; r += ROWS)
      copy_16(place + r * Shape::CODE_BYTES + (chunk ^ swizzle(r)) * 16,
              source + r * Shape::CODE_BYTES);
  } else {
#pragma unroll 1
    for (u32 r = 0; r < PRODUCT_KEYS; r += ROWS)
      copy_or_zero_16(place + r * Shape::CODE_BYTES + (chunk ^ swizzle(r)) * 16,
                      source + r * Shape::CODE_BYTES, (int)(own + r) < valid ? 16 : 0);
  }
  if (SCALES > 0 && lane < SCALES) {
    const int left = valid * Shape::SCALE_BYTES - (int)lane * 16;
    copy_or_zero_16(target.scales + lane * 16, scales + row * Shape::SCALE_BYTES + lane * 16,
                    max(0, min(16, left)));
  }
}

// Scores of 16 keys for 8 rows, as a C fragment: lane 4g+q holds keys g, g, g+8, g+8 and rows 2q, 2q+1,
// 2q, 2q+1. `query`: the rows as B fragments of all steps.
template <int C>
NINFER_DEVICE void multiply_keys(float (&score)[4], const uint2 (&query)[HEAD_DIM / 16],
                                 const ProductRows& keys, int lane) {
  using Shape = RowShape<C>;
  constexpr int STEPS = Shape::PER_CHUNK / 4, BLOCKS = Shape::CHUNKS / 4;
  constexpr int SUMS = 4;  // in turns: a product waits for the one before it in its sum
  const int g = lane / 4, q = lane % 4;
  uint4 chunk[BLOCKS][2];  // of keys g and g+8
  u32 chunk_scales[BLOCKS][2];
#pragma unroll
  for (int block = 0; block < BLOCKS; block++)
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const int key = n * 8 + g;
      chunk[block][n] =
          load_shared_16(keys.codes + key * Shape::CODE_BYTES + ((4 * block + q) ^ swizzle(g)) * 16);
      if constexpr (C == ROWS_NVFP4)
        chunk_scales[block][n] = e4m3_scales_to_f16x2(
            *(const u16*)shared_pointer(keys.scales + key * 16 + (4 * block + q) * 2));
    }
  float sum[SUMS][4] = {};
#pragma unroll
  for (int s = 0; s < STEPS; s++)
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
      u32 a[4];
#pragma unroll
      for (int n = 0; n < 2; n++) {
        u32 pair[2];
        expand_key_step<C>(chunk[block][n], s, pair);
        if constexpr (C == ROWS_NVFP4) {
          const u32 scale =
              __byte_perm(chunk_scales[block][n], 0, s < STEPS / 2 ? 0x1010 : 0x3232);
          pair[0] = mul_f16x2(pair[0], scale);
          pair[1] = mul_f16x2(pair[1], scale);
        }
        a[n] = pair[0];
        a[n + 2] = pair[1];
      }
      const uint2 b = query[block * STEPS + s];
      // Of int8 a sum is that of a group of 64.
      mma_16x8x16<C == ROWS_BF16>(sum[(s * BLOCKS + block) % SUMS], a, b.x, b.y);
    }
  if constexpr (C == ROWS_INT8) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const uint2 scales = load_shared_8(keys.scales + (n * 8 + g) * 8);
      float scale[SUMS];
#pragma unroll
      for (int i = 0; i < SUMS; i++) {
        const u32 word = i < 2 ? scales.x : scales.y;
        scale[i] = f16_to_float((u16)(i % 2 ? word >> 16 : word));
      }
#pragma unroll
      for (int i = 2 * n; i < 2 * n + 2; i++) {
        score[i] = sum[0][i] * scale[0];
#pragma unroll
        for (int k = 1; k < SUMS; k++) score[i] = fmaf(sum[k][i], scale[k], score[i]);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      score[i] = (sum[0][i] + sum[1][i]) + (sum[2][i] + sum[3][i]);
      if constexpr (C == ROWS_FP8)
        score[i] *= f16_to_float(*(const u16*)shared_pointer(keys.scales + (i / 2 * 8 + g) * 2));
    }
  }
}

// How many versions of weights there are, for parts of the elements of a value: where a part has one
// scale, the weights are multiplied with it, which takes fewer products than to multiply the values.
template <int C>
constexpr int WEIGHT_SCALES = C == ROWS_INT8 ? 4 : 1;

// Weights of 16 keys, a B fragment, for a part of the elements of the keys' values.
template <int C>
NINFER_DEVICE uint2 scale_weights(const uint2& weights, const ProductRows& values, int part,
                                  int lane) {
  if constexpr (C != ROWS_INT8 && C != ROWS_FP8) return weights;
  u32 scales[2];  // of keys 2q, 2q+1 and of 8 more
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int key = h * 8 + lane % 4 * 2;
    if constexpr (C == ROWS_INT8) {
      const uint4 both = load_shared_16(values.scales + key * 8);
      const u32 low = part < 2 ? both.x : both.y, high = part < 2 ? both.z : both.w;
      scales[h] = __byte_perm(low, high, part % 2 ? 0x7632 : 0x5410);
    } else {
      scales[h] = load_shared_4(values.scales + key * 2);
    }
  }
  return make_uint2(mul_f16x2(weights.x, scales[0]), mul_f16x2(weights.y, scales[1]));
}

// The running sums of one of WARPS warps, each of which has a part of the elements: [16
// elements][C fragment]. An n tile is 8 elements, one from each lane's words; tiles 2m and 2m+1 are
// elements g and g+8 of C fragments m.
template <int WARPS>
using Sums = float[HEAD_DIM / 16 / WARPS][4];

// acc += values of 16 keys * weights[16 keys, 8 rows].
template <int C, int WARPS>
NINFER_DEVICE void multiply_values(Sums<WARPS>& acc, const uint2& weights,
                                   const ProductRows& values, int warp, int lane) {
  using Shape = RowShape<C>;
  constexpr int SUBS = Shape::PER_CHUNK / 8, CHUNKS = Shape::CHUNKS / WARPS;
  const int key = lane % 16, first_chunk = warp * CHUNKS + lane / 16 % CHUNKS;
  const u32 row = values.codes + key * Shape::CODE_BYTES;
#pragma unroll
  for (int chunk = 0; chunk < CHUNKS; chunk += 2) {
    u32 words[4];
    const u32 address = row + ((first_chunk + chunk) ^ swizzle(key)) * 16;
    if constexpr (CHUNKS > 1)
      load_matrices_transposed(words, address);
    else
      load_two_matrices_transposed(words, address);
    constexpr int TILES = (CHUNKS > 1 ? 2 : 1) * SUBS;
    u32 scales[2][2];
    if constexpr (C == ROWS_NVFP4) {
#pragma unroll
      for (int c = 0; c < TILES / SUBS; c++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          // Each chunk has two groups of 16, of which a lane has elements of one.
          const u32 at = values.scales + (h * 8 + lane % 4 * 2) * 16 +
                         (warp * CHUNKS + chunk + c) * 2 + lane / 16;
          const u32 low = *(const u8*)shared_pointer(at);
          const u32 high = *(const u8*)shared_pointer(at + 16);
          scales[c][h] = e4m3_scales_to_f16x2((u16)(low | high << 8));
        }
    }
#pragma unroll
    for (int n = 0; n < TILES; n += 2) {
      u32 a[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {  // tile n or n+1, keys 2q, 2q+1 or 8 more
        const int c = (n + i % 2) / SUBS, h = i / 2;
        a[i] = expand_value_pair<C>(words[2 * c + h], (n + i % 2) % SUBS);
        if constexpr (C == ROWS_NVFP4) a[i] = mul_f16x2(a[i], scales[c][h]);
      }
      mma_16x8x16<false>(acc[(chunk * SUBS + n) / 2], a, weights.x, weights.y);
    }
  }
}

}  // namespace ninfer
