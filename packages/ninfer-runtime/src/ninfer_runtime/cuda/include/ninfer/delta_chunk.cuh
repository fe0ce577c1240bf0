// How the tokens of a long call of Gated DeltaNet are cut into chunks, and what one kernel leaves
// in memory for the next about each chunk.
#pragma once
#include "ninfer/delta_tokens.cuh"
#include "ninfer/prelude.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

constexpr int CHUNK = 64;  // tokens

// A sequence with fewer new tokens goes through the recurrence.
constexpr int LEAST_COLUMNS = CHUNK;

// What one sequence does.
struct Sequence {
  int position, replayed, valid, stored;  // `stored`: tokens that the stored state contains

  NINFER_DEVICE Sequence(const int* positions, const int* replays, const int* new_columns,
                         const int* commits, u32 index)
      : position(positions[index]),
        replayed(replays[index]),
        valid(new_columns[index]),
        stored(replayed + commits[index]) {}

  NINFER_DEVICE int total() const { return replayed + valid; }
  NINFER_DEVICE bool is_chunked() const { return valid >= LEAST_COLUMNS; }

  // The tokens up to the stored state are cut into chunks, then those after it, so that this state
  // is one between two chunks.
  NINFER_DEVICE int chunks_before_stored() const { return (stored + CHUNK - 1) / CHUNK; }
  NINFER_DEVICE int chunks() const {
    return chunks_before_stored() + (total() - stored + CHUNK - 1) / CHUNK;
  }
  NINFER_DEVICE int chunk_begin(int chunk) const {
    const int before = chunks_before_stored();
    return chunk < before ? chunk * CHUNK : stored + (chunk - before) * CHUNK;
  }
  NINFER_DEVICE int chunk_end(int chunk) const {
    const int end = chunk < chunks_before_stored() ? stored : total();
    return min(end, chunk_begin(chunk) + CHUNK);
  }
};

// Rows of 64 tokens and 64 f16 or bf16 elements: 128 bytes each, chunks of 16 bytes spread over the
// banks, for reads of eight rows at one chunk.
constexpr int TILE_BYTES = CHUNK * 128;

// Lower triangular matrices of tokens: blocks of 16 rows and 16 columns of f16 on and below the
// diagonal, column by column. A block is four 8x8 matrices, two to the right before the two below
// them.
constexpr int BLOCK_BYTES = 512;
constexpr int LOWER_BLOCKS = 10;
NINFER_DEVICE constexpr int lower_block(int row, int column) {
  return column * (7 - column) / 2 + row;
}
// In shared memory all columns are four blocks long.
constexpr int SQUARE_BYTES = 16 * BLOCK_BYTES;
NINFER_DEVICE constexpr int square_block(int row, int column) { return column * 4 + row; }

// Of a chunk and key head: unit keys, then unit queries, f16, each in two tiles.
constexpr int KEY_BYTES = 2 * TILE_BYTES;
constexpr int KEY_RECORD_BYTES = 2 * KEY_BYTES;

// Of a chunk and value head: (I + A)^-1, the decayed scores of queries and keys, the factors of
// tokens, and the values, bf16, in two tiles.
constexpr int INVERSE_BYTES = LOWER_BLOCKS * BLOCK_BYTES;
constexpr int FACTOR_BYTES = (4 * CHUNK + 4) * 4;
constexpr int TERM_BYTES = 2 * INVERSE_BYTES + FACTOR_BYTES;
constexpr int VALUE_RECORD_BYTES = TERM_BYTES + 2 * TILE_BYTES;

// Factors of the 64 tokens, one array after the other: step size times decay since the chunk began,
// step size, decay since the chunk began, decay until the chunk ends. Then the largest step size
// and the largest value. The decays account for a state that is kept 2^SHRINK times smaller than
// values.
constexpr int STEP_DECAY = 0, STEP = CHUNK, DECAY = 2 * CHUNK, REMAINING = 3 * CHUNK;
constexpr int SHRINK = 5;
constexpr int LARGEST_STEP = 4 * CHUNK, LARGEST_VALUE = LARGEST_STEP + 1;

// Powers and quotients of one instruction each: results below 2^-126 become zeros.
NINFER_DEVICE float exp_or_zero(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x * 1.4426950408889634f));
  return r;
}
NINFER_DEVICE float silu_or_zero(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.f + exp_or_zero(-x)));
  return x * r;
}

// The sum over LANES neighbouring lanes of x[i], where i is the eighth of them that the lane is in:
// at each step half of the sums go to the other half of the lanes.
template <int LANES>
NINFER_DEVICE float sum_of_eighth(float (&x)[8], int lane) {
#pragma unroll
  for (int n = 4; n > 0; n /= 2)
#pragma unroll
    for (int i = 0; i < n; i++) {
      const int d = n * LANES / 8;
      const float other = lane & d ? x[i] : x[i + n], own = lane & d ? x[i + n] : x[i];
      x[i] = own + __shfl_xor_sync(~0u, other, d);
    }
  return warp_sum<LANES / 8>(x[0]);
}

}  // namespace ninfer
