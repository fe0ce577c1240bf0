// The inverse of I + A for a chunk of Gated DeltaNet, A strictly lower triangular: blocks of 16
// tokens.
#pragma once
#include "ninfer/delta_chunk.cuh"
#include "ninfer/matrices.cuh"
#include "ninfer/mma.cuh"

namespace ninfer {

// Shared memory of a value head: A below its diagonal blocks as B fragments, those blocks,
// transposed and in float, their inverses, and what `store_factors` says of the tokens.
constexpr int BELOW_BYTES = 6 * BLOCK_BYTES;
constexpr int DIAGONAL_STRIDE =
    16 * 16 + 16;  // floats; the blocks that a warp reads differ in banks
constexpr int DIAGONAL_BYTES = 4 * DIAGONAL_STRIDE * 4;
constexpr int UNIT_STRIDE = 48;  // bytes of a row of an inverse
constexpr int UNIT_BYTES = 4 * 16 * UNIT_STRIDE;
constexpr int HEAD_BYTES = BELOW_BYTES + DIAGONAL_BYTES + UNIT_BYTES + (6 * CHUNK + 16) * 4;

struct HeadMemory {
  u8* base;

  NINFER_DEVICE u8* below(int row, int column) const {
    return base + (row * (row - 1) / 2 + column) * BLOCK_BYTES;
  }
  NINFER_DEVICE float* diagonal(int block) const {
    return (float*)(base + BELOW_BYTES) + block * DIAGONAL_STRIDE;
  }
  NINFER_DEVICE u8* unit(int block) const {
    return base + BELOW_BYTES + DIAGONAL_BYTES + block * (16 * UNIT_STRIDE);
  }
  // Logarithms of decays in two floats, step sizes; decays to the end of the token's block of 16,
  // from its first token, the same times the step size.
  NINFER_DEVICE float* decay_sum() const {
    return (float*)(base + BELOW_BYTES + DIAGONAL_BYTES + UNIT_BYTES);
  }
  NINFER_DEVICE float* decay_rest() const { return decay_sum() + CHUNK; }
  NINFER_DEVICE float* step() const { return decay_sum() + 2 * CHUNK; }
  NINFER_DEVICE float* until_end() const { return decay_sum() + 3 * CHUNK; }
  NINFER_DEVICE float* from_first() const { return decay_sum() + 4 * CHUNK; }
  NINFER_DEVICE float* from_first_step() const { return decay_sum() + 5 * CHUNK; }
  // From the end of block `column` to the first token of block `row`, [row][column].
  NINFER_DEVICE float* between_blocks() const { return decay_sum() + 6 * CHUNK; }
};

// Stores a block of a lower triangular matrix: m[i] of lane 4g+q are columns 2q and 2q+1 of row g
// of its 8x8 matrix i. A lane gathers a row of matrix q from its neighbours, who need the rest of
// what it has.
NINFER_DEVICE void store_block(u8* matrix, int row, int column, const u32* m, int lane) {
  u32 x[4] = {m[0], m[1], m[2], m[3]};
#pragma unroll
  for (int d = 1; d < 4; d *= 2)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i & d) continue;
      const u32 other = __shfl_xor_sync(~0u, lane & d ? x[i] : x[i + d], d);
      if (lane & d)
        x[i] = other;
      else
        x[i + d] = other;
    }
  u8* block = matrix + lower_block(row, column) * BLOCK_BYTES;
  *(uint4*)(block + lane % 4 * 128 + lane / 4 * 16) = make_uint4(x[0], x[1], x[2], x[3]);
}

// Row `row` of the inverse of I + A for a diagonal block: m (I + A) = e solved from the last column
// on.
NINFER_DEVICE void invert_row(const float* transposed, u8* unit, int row) {
  float m[16];
#pragma unroll
  for (int j = 15; j >= 0; j--) {
    float column[16];
#pragma unroll
    for (int l = j / 4 * 4; l < 16; l += 4) {
      const float4 v = *(const float4*)(transposed + j * 16 + l);
      column[l] = v.x, column[l + 1] = v.y, column[l + 2] = v.z, column[l + 3] = v.w;
    }
    float sum = row == j ? 1.f : 0.f;
#pragma unroll
    for (int l = j + 1; l < 16; l++) sum = fmaf(-m[l], column[l], sum);
    m[j] = sum;
  }
  u32 words[8];
#pragma unroll
  for (int i = 0; i < 8; i++) words[i] = f16_pair(m[2 * i], m[2 * i + 1]);
  uint4* target = (uint4*)(unit + row * UNIT_STRIDE);
  target[0] = make_uint4(words[0], words[1], words[2], words[3]);
  target[1] = make_uint4(words[4], words[5], words[6], words[7]);
}

// Rows 16 i .. 16 i + 15 of the inverse, block by block to the left:
// M[i, j] = -(sum over l in j+1..i of M[i, l] A[l, j]) M[j, j].
NINFER_DEVICE void invert_panel(const HeadMemory& head, u8* inverse, int i, int lane) {
  const u32 place = lane % 16 * UNIT_STRIDE + lane / 16 * 16;
  u32 m[4][4];  // M[i, i - d]
  load_matrices(m[0], shared_address(head.unit(i)) + place);
  auto store = [&](int column, const u32* a) {
    const u32 words[4] = {a[0], a[2], a[1], a[3]};
    store_block(inverse, i, column, words, lane);
  };
  store(i, m[0]);
#pragma unroll
  for (int d = 1; d < 4; d++) {
    if (d > i) break;
    const int j = i - d;
    float x[2][4] = {}, y[2][4] = {};
#pragma unroll
    for (int e = 0; e < d; e++) {
      const uint4 b = *(const uint4*)(head.below(i - e, j) + lane * 16);
      mma_16x8x16<false>(x[0], m[e], b.x, b.y);
      mma_16x8x16<false>(x[1], m[e], b.z, b.w);
    }
    u32 a[4], b[4];
    fragment_of_sums(a, x[0], x[1]);
    load_matrices_transposed(b, shared_address(head.unit(j)) + place);
    mma_16x8x16<false>(y[0], a, b[0], b[1]);
    mma_16x8x16<false>(y[1], a, b[2], b[3]);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) y[n][e] = -y[n][e];
    fragment_of_sums(m[d], y[0], y[1]);
    store(j, m[d]);
  }
}

}  // namespace ninfer
