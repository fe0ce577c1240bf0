// Tiles of keys and their values in shared memory, and their products with rows.
#pragma once
#include "ninfer/kv_rows.cuh"
#include "ninfer/matrices.cuh"
#include "ninfer/mma.cuh"
#include "ninfer/prelude.cuh"

namespace ninfer {

constexpr int PRODUCT_KEYS = 16;  // of one product of the tensor cores

NINFER_DEVICE void copy_or_zero_16(u32 target, const u8* source, int num_bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
               "r"(num_bytes)
               : "memory");
}
NINFER_DEVICE void commit_tile() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
NINFER_DEVICE void wait_for_tile() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Chunks of neighbouring rows are spread over the banks, for reads of two rows by four chunks and
// of eight rows at one chunk alike.
NINFER_DEVICE int swizzle(int row) { return (row & 1) << 2 | (row >> 1 & 3); }

// The keys or values of one product.
struct ProductRows {
  u32 codes, scales;  // in shared memory
};

// Keys or values of one tile in shared memory: codes with swizzled chunks, then scales.
template <int C, int KEYS>
struct Tile {
  using Shape = RowShape<C>;
  static constexpr int CODE_BYTES = KEYS * Shape::CODE_BYTES;
  static constexpr int BYTES = CODE_BYTES + KEYS * Shape::SCALE_BYTES;

  static NINFER_DEVICE ProductRows product(u32 tile, int number) {
    return {tile + number * PRODUCT_KEYS * Shape::CODE_BYTES,
            tile + CODE_BYTES + number * PRODUCT_KEYS * Shape::SCALE_BYTES};
  }

};

// Begins to copy the rows of one product by one warp. Rows from `valid` on become zeros: what lies in
// memory there may be anything.
template <int C>
NINFER_DEVICE void copy_product(const ProductRows& target, const u8* codes, const u8* scales,
                                i64 row, int valid, int lane) {
  using Shape = RowShape<C>;
  const u8* source = codes + row * Shape::CODE_BYTES;
#pragma unroll
  for (int i = lane; i < PRODUCT_KEYS * Shape::CHUNKS; i += 32) {
    const int r = i / Shape::CHUNKS, chunk = i % Shape::CHUNKS;
    copy_or_zero_16(target.codes + r * Shape::CODE_BYTES + (chunk ^ swizzle(r)) * 16,
                    source + i * 16, r < valid ? 16 : 0);
  }
  if constexpr (Shape::SCALE_BYTES > 0) {
    const u8* scale_source = scales + row * Shape::SCALE_BYTES;
    if (lane < PRODUCT_KEYS * Shape::SCALE_BYTES / 16) {
      const int left = valid * Shape::SCALE_BYTES - lane * 16;
      copy_or_zero_16(target.scales + lane * 16, scale_source + lane * 16, max(0, min(16, left)));
    }
  }
}

// Scores of 16 keys for OCTETS * 8 rows, as C fragments: lane 4g+q holds keys g, g,
// g+8, g+8 and rows 2q, 2q+1, 2q, 2q+1.
template <int C, int OCTETS>
NINFER_DEVICE void multiply_keys(float (&score)[OCTETS][4], u32 query, const ProductRows& keys,
                                 int lane) {
  using Shape = RowShape<C>;
  constexpr int STEPS = Shape::PER_CHUNK / 4;
  const int g = lane / 4, q = lane % 4;
  const u32 scales = keys.scales;
  float part[OCTETS][4] = {};
#pragma unroll
  for (int o = 0; o < OCTETS; o++)
#pragma unroll
    for (int i = 0; i < 4; i++) score[o][i] = 0.f;
  uint2 group_scales[2];  // of keys g and g+8
  if constexpr (C == ROWS_INT8) {
#pragma unroll
    for (int n = 0; n < 2; n++) group_scales[n] = load_shared_8(scales + (n * 8 + g) * 8);
  }
#pragma unroll
  for (int block = 0; block < Shape::CHUNKS / 4; block++) {
    uint4 chunk[2];
    u32 chunk_scales[2];
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const int key = n * 8 + g;
      chunk[n] =
          load_shared_16(keys.codes + key * Shape::CODE_BYTES + ((4 * block + q) ^ swizzle(g)) * 16);
      if constexpr (C == ROWS_NVFP4)
        chunk_scales[n] = e4m3_scales_to_f16x2(
            *(const u16*)shared_pointer(scales + key * 16 + (4 * block + q) * 2));
    }
    if constexpr (C == ROWS_INT8) {
#pragma unroll
      for (int o = 0; o < OCTETS; o++)
#pragma unroll
        for (int i = 0; i < 4; i++) part[o][i] = 0.f;
    }
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      u32 a[4];
#pragma unroll
      for (int n = 0; n < 2; n++) {
        u32 pair[2];
        expand_key_step<C>(chunk[n], s, pair);
        if constexpr (C == ROWS_NVFP4) {
          const u32 scale = __byte_perm(chunk_scales[n], 0, s < STEPS / 2 ? 0x1010 : 0x3232);
          pair[0] = mul_f16x2(pair[0], scale);
          pair[1] = mul_f16x2(pair[1], scale);
        }
        a[n] = pair[0];
        a[n + 2] = pair[1];
      }
#pragma unroll
      for (int o = 0; o < OCTETS; o++) {
        const u32 at = query + (o * 16 + block * STEPS + s) * 256 + lane * 8;
        const uint2 b = load_shared_8(at);
        // Two sums in turns: a product waits for the one before it in its sum.
        mma_16x8x16<C == ROWS_BF16>(s % 2 || C == ROWS_INT8 ? part[o] : score[o], a, b.x, b.y);
      }
    }
    if constexpr (C == ROWS_INT8) {  // one block is one group of 64
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const u32 word = block < 2 ? group_scales[i / 2].x : group_scales[i / 2].y;
        const float scale = f16_to_float((u16)(block % 2 ? word >> 16 : word));
#pragma unroll
        for (int o = 0; o < OCTETS; o++) score[o][i] = fmaf(part[o][i], scale, score[o][i]);
      }
    }
  }
  if constexpr (C != ROWS_INT8) {
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
      for (int i = 0; i < 4; i++) score[o][i] += part[o][i];
  }
  if constexpr (C == ROWS_FP8) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float scale = f16_to_float(*(const u16*)shared_pointer(scales + (i / 2 * 8 + g) * 2));
#pragma unroll
      for (int o = 0; o < OCTETS; o++) score[o][i] *= scale;
    }
  }
}

// Whether all elements of a key's value that a warp has share a scale. Then weights are multiplied with
// it, which takes fewer products, and with 64, so that small ones keep their bits.
template <int C>
constexpr bool SCALES_WEIGHTS = C == ROWS_INT8 || C == ROWS_FP8;

// What sums of values are still to be multiplied with.
template <int C>
NINFER_DEVICE constexpr float value_factor() {
  return SCALES_WEIGHTS<C> ? row_factor<C>() / 64 : row_factor<C>();
}

// The scales of the values of keys 2q, 2q+1 (and 8 more) of 16, in the chunks of one of WARPS warps.
template <int C, int WARPS>
struct ValueScales {
  // Of int8 a warp has one group; of nvfp4 four, whose bytes are a word of a row.
  static_assert((C != ROWS_INT8 && C != ROWS_NVFP4) || WARPS == 4, "scales of a warp");
  u32 first[2], second[2];  // [half of the keys]
  u32 select;               // nvfp4: byte of this lane's group in either word

  NINFER_DEVICE ValueScales(u32 scales, int warp, int lane) {
    const int q = lane % 4;
    select = lane / 4 < 4 ? 0x40 : 0x51;  // each chunk has two groups of 16
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int key = h * 8 + 2 * q;
      if constexpr (C == ROWS_INT8) {
        const u32 low = *(const u16*)shared_pointer(scales + key * 8 + warp * 2);
        const u32 high = *(const u16*)shared_pointer(scales + key * 8 + 8 + warp * 2);
        first[h] = low | high << 16;
      }
      if constexpr (C == ROWS_FP8) first[h] = load_shared_4(scales + key * 2);
      if constexpr (SCALES_WEIGHTS<C>) first[h] = mul_f16x2(first[h], 0x54005400u);
      if constexpr (C == ROWS_NVFP4) {
        first[h] = load_shared_4(scales + key * 16 + warp * 4);
        second[h] = load_shared_4(scales + key * 16 + 16 + warp * 4);
      }
    }
  }

  NINFER_DEVICE uint2 scale(const uint2& weights) const {
    if constexpr (!SCALES_WEIGHTS<C>) return weights;
    return make_uint2(mul_f16x2(weights.x, first[0]), mul_f16x2(weights.y, first[1]));
  }

  // The scales of the values of a chunk of nvfp4, as f16x2.
  NINFER_DEVICE u32 pair(int chunk, int h) const {
    const u32 a = first[h] >> (chunk * 16), b = second[h] >> (chunk * 16);
    return e4m3_scales_to_f16x2((u16)__byte_perm(a, b, select));
  }
};

// The running sums of one of WARPS warps, each of which has a part of the elements: [16
// elements][octet of rows][C fragment]. An n tile is 8 elements, one from each lane's words; tiles 2m
// and 2m+1 are elements g and g+8 of C fragments m.
template <int OCTETS, int WARPS>
using Sums = float[HEAD_DIM / 16 / WARPS][OCTETS][4];

// acc += values of 16 keys * weights[16 keys, rows].
template <int C, int OCTETS, int WARPS>
NINFER_DEVICE void multiply_values(Sums<OCTETS, WARPS>& acc, uint2 (&weights)[OCTETS],
                                   const ProductRows& values, int warp, int lane) {
  using Shape = RowShape<C>;
  constexpr int SUBS = Shape::PER_CHUNK / 8, CHUNKS = Shape::CHUNKS / WARPS;
  const ValueScales<C, WARPS> scales(values.scales, warp, lane);
#pragma unroll
  for (int o = 0; o < OCTETS; o++) weights[o] = scales.scale(weights[o]);
  const int key = lane % 16, first_chunk = warp * CHUNKS + lane / 16;
  const u32 row = values.codes + key * Shape::CODE_BYTES;
#pragma unroll
  for (int chunk = 0; chunk < CHUNKS; chunk += 2) {
    u32 words[4];
    load_matrices_transposed(words, row + ((first_chunk + chunk) ^ swizzle(key)) * 16);
#pragma unroll
    for (int n = 0; n < 2 * SUBS; n += 2) {
      u32 a[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {  // tile n or n+1, keys 2q, 2q+1 or 8 more
        const int c = (n + i % 2) / SUBS, h = i / 2;
        a[i] = expand_value_pair<C>(words[2 * c + h], (n + i % 2) % SUBS);
        if constexpr (C == ROWS_NVFP4) a[i] = mul_f16x2(a[i], scales.pair(chunk + c, h));
      }
#pragma unroll
      for (int o = 0; o < OCTETS; o++)
        mma_16x8x16<false>(acc[(chunk * SUBS + n) / 2][o], a, weights[o].x, weights[o].y);
    }
  }
}

}  // namespace ninfer
