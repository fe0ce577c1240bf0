// Tiles of 16 keys and their values in shared memory, and their products with the rows of a warp.
#pragma once
#include "ninfer/kv_rows.cuh"
#include "ninfer/matrices.cuh"
#include "ninfer/mma.cuh"
#include "ninfer/prelude.cuh"

namespace ninfer {

constexpr int TILE = 16;  // keys

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

// Keys or values of one tile in shared memory: codes with swizzled chunks, then scales.
template <int C>
struct Tile {
  using Shape = RowShape<C>;
  static constexpr int CODE_BYTES = TILE * Shape::CODE_BYTES;
  static constexpr int SCALE_BYTES = (TILE * Shape::SCALE_BYTES + 15) / 16 * 16;
  static constexpr int BYTES = CODE_BYTES + SCALE_BYTES;

  // Rows from `valid` on become zeros: what lies in memory there may be anything.
  template <int THREADS>
  static NINFER_DEVICE void copy(u32 target, const u8* codes, const u8* scales, i64 row, int valid,
                                 int thread) {
    const u8* source = codes + row * Shape::CODE_BYTES;
#pragma unroll
    for (int i = thread; i < CODE_BYTES / 16; i += THREADS) {
      const int r = i / Shape::CHUNKS, chunk = i % Shape::CHUNKS;
      copy_or_zero_16(target + r * Shape::CODE_BYTES + (chunk ^ swizzle(r)) * 16, source + i * 16,
                      r < valid ? 16 : 0);
    }
    if constexpr (SCALE_BYTES > 0) {
      const u8* scale_source = scales + row * Shape::SCALE_BYTES;
      if (thread < SCALE_BYTES / 16) {
        const int left = valid * Shape::SCALE_BYTES - thread * 16;
        copy_or_zero_16(target + CODE_BYTES + thread * 16, scale_source + thread * 16,
                        max(0, min(16, left)));
      }
    }
  }
};

// Scores of the 16 keys of a tile for OCTETS * 8 rows, as C fragments: lane 4g+q holds keys g, g,
// g+8, g+8 and rows 2q, 2q+1, 2q, 2q+1.
template <int C, int OCTETS>
NINFER_DEVICE void multiply_keys(float (&score)[OCTETS][4], u32 query, u32 tile, int lane) {
  using Shape = RowShape<C>;
  constexpr int STEPS = Shape::PER_CHUNK / 4;
  const int g = lane / 4, q = lane % 4;
  const u32 scales = tile + Tile<C>::CODE_BYTES;
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
          load_shared_16(tile + key * Shape::CODE_BYTES + ((4 * block + q) ^ swizzle(g)) * 16);
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

// The scales of the values of keys 2q, 2q+1 (and 8 more) of a tile, as f16x2 for a chunk.
template <int C>
struct ValueScales {
  uint4 first[2], second[2];  // [half of the tile]: scale words of keys 2q and 2q+1
  u32 select;                 // nvfp4: byte of this lane's group in either word

  NINFER_DEVICE ValueScales(u32 tile, int lane) {
    const int q = lane % 4;
    const u32 scales = tile + Tile<C>::CODE_BYTES;
    select = lane / 4 < 4 ? 0x40 : 0x51;  // each chunk has two groups of 16
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int key = h * 8 + 2 * q;
      if constexpr (C == ROWS_INT8) first[h] = load_shared_16(scales + key * 8);
      if constexpr (C == ROWS_FP8) first[h].x = load_shared_4(scales + key * 2);
      if constexpr (C == ROWS_NVFP4) {
        first[h] = load_shared_16(scales + key * 16);
        second[h] = load_shared_16(scales + key * 16 + 16);
      }
    }
  }

  NINFER_DEVICE u32 pair(int chunk, int h) const {
    if constexpr (C == ROWS_INT8) {
      const int group = chunk / 4;
      const u32 a = group < 2 ? first[h].x : first[h].y, b = group < 2 ? first[h].z : first[h].w;
      return __byte_perm(a, b, group % 2 ? 0x7632 : 0x5410);
    } else if constexpr (C == ROWS_FP8) {
      return first[h].x;
    } else {
      const u32 a = word_of(first[h], chunk / 2) >> (chunk % 2 * 16);
      const u32 b = word_of(second[h], chunk / 2) >> (chunk % 2 * 16);
      return e4m3_scales_to_f16x2((u16)__byte_perm(a, b, select));
    }
  }
};

// The running sums of a warp: [16 elements][octet of rows][C fragment]. An n tile is 8 elements,
// one from each lane's words; tiles 2m and 2m+1 are elements g and g+8 of C fragments m.
template <int OCTETS>
using Sums = float[HEAD_DIM / 16][OCTETS][4];

// acc += values of a tile * weights[16 keys, rows].
template <int C, int OCTETS>
NINFER_DEVICE void multiply_values(Sums<OCTETS>& acc, const u32 (&weights)[OCTETS][2], u32 tile,
                                   int lane) {
  using Shape = RowShape<C>;
  constexpr int SUBS = Shape::PER_CHUNK / 8;
  const ValueScales<C> scales(tile, lane);
  const int key = lane % 16, odd_chunk = lane / 16;
  const u32 row = tile + key * Shape::CODE_BYTES;
#pragma unroll
  for (int chunk = 0; chunk < Shape::CHUNKS; chunk += 2) {
    u32 words[4];
    load_matrices_transposed(words, row + ((chunk + odd_chunk) ^ swizzle(key)) * 16);
#pragma unroll
    for (int n = 0; n < 2 * SUBS; n += 2) {
      u32 a[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {  // tile n or n+1, keys 2q, 2q+1 or 8 more
        const int c = (n + i % 2) / SUBS, h = i / 2;
        a[i] = expand_value_pair<C>(words[2 * c + h], (n + i % 2) % SUBS);
        if constexpr (Shape::SCALE_BYTES > 0) a[i] = mul_f16x2(a[i], scales.pair(chunk + c, h));
      }
#pragma unroll
      for (int o = 0; o < OCTETS; o++)
        mma_16x8x16<false>(acc[(chunk * SUBS + n) / 2][o], a, weights[o][0], weights[o][1]);
    }
  }
}

}  // namespace ninfer
