// Rows that a router scores experts by.
#pragma once
#include "ninfer/activation_rows.cuh"
#include "ninfer/async_copy.cuh"
#include "ninfer/mma.cuh"
#include "ninfer/residual_sums.cuh"

namespace ninfer {

// The rows of the tokens: 32 columns of K lie together, as they are or as a B fragment
// (ActivationRows).
struct TokenRows {
  const u16* x;
  i64 row_stride, chunk_stride;  // in elements, the second one from 32 columns to the next
  int size, tokens;
  bool fragments;
  DeferredNorm norm;

  // Eight values of a token at column `k`, of weights' rows those that `arrange` has put there.
  NINFER_DEVICE uint4 load(int token, int k) const {
    if (token >= tokens || k >= size) return make_uint4(0, 0, 0, 0);
    return load_global_16(x + (k >> 5) * chunk_stride + token * row_stride + (k & 31));
  }
  // Weights of neighbouring columns from a multiple of 32 on, which four neighbouring lanes hold, in the
  // order of the values of `load`.
  NINFER_DEVICE uint4 arrange(const uint4& weights) const {
    u32 r[4] = {weights.x, weights.y, weights.z, weights.w};
    if (fragments) transpose_over_four_lanes(r);
    return make_uint4(r[0], r[1], r[2], r[3]);
  }
  // What the products of a token are still to be multiplied with, by a warp.
  NINFER_DEVICE float factor(int token, int lane) const {
    return norm.squares ? norm.factor(token, lane, 1.f) : 1.f;
  }
};

// Up to 8 rows of a router, one warp's part of K: CHUNKS chunks of 32 values, of which with EVEN all
// exist.
template <int CHUNKS, bool EVEN>
struct FewScores {
  static constexpr int ROW_BYTES = CHUNKS * 64;
  u32 memory;  // shared, of this warp: ROW_BYTES for each row
  int rows;    // at most 8

  // Begins to copy the rows from `first_row` on.
  NINFER_DEVICE void fetch(const u16* router, int first_row, int size, int part, int lane) const {
#pragma unroll 1
    for (int i = lane; i < rows * CHUNKS * 4; i += 32) {
      const int row = i / (CHUNKS * 4), k = part * CHUNKS * 32 + i % (CHUNKS * 4) * 8;
      if (EVEN || k < size)
        copy_16(memory + i * 16, router + (i64)(first_row + row) * size + k);
      else
        *(uint4*)shared_pointer(memory + i * 16) = make_uint4(0, 0, 0, 0);
    }
    commit_copies();
  }
  // What lanes 4t to 4t + 3 multiply with: values of token t.
  NINFER_DEVICE static void load(uint4* b, const TokenRows& x, int part, int lane) {
    const u16* const row = x.x + part * CHUNKS * x.chunk_stride + (lane >> 2) * x.row_stride;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
      const int k = (part * CHUNKS + i) * 32 + (lane & 3) * 8;
      if (lane >> 2 < x.tokens && (EVEN || k < x.size))
        b[i] = load_global_16(row + i * x.chunk_stride + (lane & 3) * 8);
    }
  }

  // Leaves sums of this part as [token][8 rows], for `columns` tokens. The order of values inside a
  // product is free as long as both operands share it: a lane takes those columns of a row that `load`
  // has brought.
  NINFER_DEVICE void multiply(const uint4* b, float* sums, const TokenRows& x, int columns,
                              int lane) const {
    const int q = lane & 3, row = lane >> 2, distance = x.fragments ? 16 : 4;
    const u32 own = memory + row * ROW_BYTES + q * (20 - distance);
    float acc[4][4] = {};  // products that wait for one another less
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
      u32 a[4] = {0, 0, 0, 0};
      if (row < rows)
#pragma unroll
        for (int j = 0; j < 4; j++) a[j] = load_shared_4(own + i * 64 + j * distance);
      const u32 first[4] = {a[0], 0, a[1], 0}, second[4] = {a[2], 0, a[3], 0};
      mma_16x8x16<true>(acc[2 * i % 4], first, b[i].x, b[i].y);
      mma_16x8x16<true>(acc[2 * i % 4 + 1], second, b[i].z, b[i].w);
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int token = 2 * q + e;
      if (token < columns)
        sums[token * 8 + row] = (acc[0][e] + acc[1][e]) + (acc[2][e] + acc[3][e]);
    }
  }
};

}  // namespace ninfer
