// The state of 16 value rows of Gated DeltaNet in the registers of one warp, and what a chunk does
// to it.
//
// Everything is transposed, rows are value components: a product's sums are then in the order of
// the A fragments of the next product, and the chunk's matrices are B, which all warps share.
#pragma once
#include "ninfer/delta_chunk.cuh"
#include "ninfer/delta_products.cuh"
#include "ninfer/matrices.cuh"

namespace ninfer {

NINFER_DEVICE float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// The exponent of the power of two at or below a positive normal number.
NINFER_DEVICE int exponent_of(float x) { return (int)(__float_as_uint(x) >> 23 & 0xff) - 127; }

// Addresses of a chunk's matrices in shared memory.
struct ChunkMatrices {
  u32 keys, queries, inverse, scores, values;
  const float* factors;
};

// A factor of each token that a lane has: 2q and 2q+1 of every eight.
struct TokenFactors {
  float2 pairs[8];

  NINFER_DEVICE TokenFactors(const float* factors, int lane) {
#pragma unroll
    for (int j = 0; j < 8; j++) pairs[j] = *(const float2*)(factors + 8 * j + lane % 4 * 2);
  }
  NINFER_DEVICE float of(int j, int e) const { return e % 2 ? pairs[j].y : pairs[j].x; }
  NINFER_DEVICE void scale(float (&rows)[8][4]) const {
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) rows[j][e] *= of(j, e);
  }
};

// State [16, 128] times a power of two: lane 4g+q holds rows g and g+8, columns 2q and 2q+1 of
// every eight.
//
// The operands are f16: values, errors and new rows times 2^exponent, the state 2^SHRINK times
// smaller. With entries of the inverse and of unit vectors of 1 at most, no sum of a chunk exceeds
// 64 * (1 + sqrt(128)) times the largest value or state entry. While that is below 2^6, nothing
// overflows; from 2^-2 up, what f16 rounds off is at most 2^-23 of it, of the state 2^-18. For the
// state the bounds are 2 and 2^-7, bits of the exponents in f16, which are found in all entries
// together.
struct StateStrip {
  static constexpr int LOWEST = -2, HIGHEST = 6, MOST = 100;
  static constexpr u32 TOO_LARGE = 0x40004000, LARGE_ENOUGH = 0x20002000;

  float s[16][4];
  int exponent;

  NINFER_DEVICE float* place(float* state, int lane, int j, int half) const {
    return state + (lane / 4 + half * 8) * HEAD + 8 * j + lane % 4 * 2;
  }
  NINFER_DEVICE void clear() {
    exponent = SHRINK;
#pragma unroll
    for (int j = 0; j < 16; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) s[j][e] = 0.f;
  }
  // From 16 rows of memory.
  NINFER_DEVICE void load(const float* state, int lane) {
    exponent = SHRINK;
#pragma unroll
    for (int j = 0; j < 16; j++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float2 v = __ldcg((const float2*)place((float*)state, lane, j, half));
        s[j][2 * half] = v.x;
        s[j][2 * half + 1] = v.y;
      }
  }
  NINFER_DEVICE void store(float* state, int lane) const {
    const float scale = power_of_two(SHRINK - exponent);
#pragma unroll
    for (int j = 0; j < 16; j++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        *(float2*)place(state, lane, j, half) =
            make_float2(s[j][2 * half] * scale, s[j][2 * half + 1] * scale);
  }

  NINFER_DEVICE void pack(u32 (&a)[8][4]) const {
#pragma unroll
    for (int t = 0; t < 8; t++) fragment_of_sums(a[t], s[2 * t], s[2 * t + 1]);
  }

  // The state as fragments, after a change of the power of two where it needs one.
  NINFER_DEVICE void pack_in_range(u32 (&a)[8][4], float largest_value) {
    pack(a);
    u32 bits = 0;
#pragma unroll
    for (int t = 0; t < 8; t++) bits |= a[t][0] | a[t][1] | a[t][2] | a[t][3];
    bits = __reduce_or_sync(~0u, bits);
    const int value = exponent_of(largest_value) + exponent;
    const bool fits = !(bits & TOO_LARGE) && value < HIGHEST;
    const bool is_exact = bits & LARGE_ENOUGH || value >= LOWEST || exponent == MOST;
    if (fits && is_exact) return;
    rescale(value);
    pack(a);
  }

  // Brings the larger of the state and of a value with exponent `value` to 2^3.
  NINFER_DEVICE void rescale(int value) {
    float largest = 0.f;
#pragma unroll
    for (int j = 0; j < 16; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) largest = fmaxf(largest, fabsf(s[j][e]));
    largest = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(largest)));
    const int wanted = exponent + 3 - max(exponent_of(largest) + SHRINK, value);
    const int next = max(-120, min(MOST, wanted)), shift = next - exponent;
    const float first = power_of_two(shift / 2), second = power_of_two(shift - shift / 2);
#pragma unroll
    for (int j = 0; j < 16; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) s[j][e] = s[j][e] * first * second;
    exponent = next;
  }

  // Runs a chunk; `y` becomes the rows of its tokens, times sqrt(128) and the power of two: lane
  // 4g+q holds components g and g+8 of tokens 2q and 2q+1 of every eight. `warp`: which 16
  // components. The products P may still be at work on the state afterwards.
  template <class P>
  NINFER_DEVICE void advance(float (&y)[8][4], const ChunkMatrices& chunk, int warp, int lane) {
    const float* factors = chunk.factors;
    u32 a[8][4], rows[4][4], decayed[4][4];
    float n[8][4], errors[8][4];
    pack_in_range(a, factors[LARGEST_VALUE] * factors[LARGEST_STEP]);
    P::begin();
    P::multiply_tokens(n, a, chunk.keys, lane);
    P::commit();
    P::multiply_tokens(y, a, chunk.queries, lane);
    P::commit();
    // What does not need the products, while they are computed.
    load_values(errors, chunk, warp, lane);
    const float decay = factors[DECAY + CHUNK - 1] * power_of_two(-SHRINK);
    const TokenFactors step_decay(factors + STEP_DECAY, lane);
    P::template wait<1>(n);
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) errors[j][e] = fmaf(-step_decay.of(j, e), n[j][e], errors[j][e]);
    pack_tokens(rows, errors);
    const TokenFactors since_begin(factors + DECAY, lane);
    P::begin();
    P::template multiply_lower<false>(n, rows, chunk.inverse, lane);
    P::commit();
    P::template wait<1>(y);
    since_begin.scale(y);
#pragma unroll
    for (int j = 0; j < 16; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) s[j][e] *= decay;
    const TokenFactors until_end(factors + REMAINING, lane);
    P::template wait<0>(n);
    pack_tokens(rows, n);
    P::begin();
    P::template multiply_lower<true>(y, rows, chunk.scores, lane);
    P::commit();
    until_end.scale(n);
    pack_tokens(decayed, n);
    P::begin();
    P::add_updates(s, decayed, chunk.keys, lane);
    P::commit();
    P::template wait<1>(y);
  }

  static NINFER_DEVICE void pack_tokens(u32 (&a)[4][4], const float (&rows)[8][4]) {
#pragma unroll
    for (int p = 0; p < 4; p++) fragment_of_sums(a[p], rows[2 * p], rows[2 * p + 1]);
  }

  // Values times step sizes.
  NINFER_DEVICE void load_values(float (&rows)[8][4], const ChunkMatrices& chunk, int warp,
                                 int lane) const {
    const float scale = power_of_two(exponent);
    const u32 base = chunk.values + warp / 4 * TILE_BYTES + (lane / 16 * 8 + lane % 8) * 128 +
                     ((warp % 4 * 2 + lane / 8 % 2) ^ (lane & 7)) * 16;
    const TokenFactors step(chunk.factors + STEP, lane);
#pragma unroll
    for (int p = 0; p < 4; p++) {
      u32 v[4];
      load_matrices_transposed(v, base + p * 2048);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int j = 2 * p + i / 2, e = i % 2 * 2;
        const float2 value = pair_of(v[i]);
        rows[j][e] = step.of(j, e) * scale * value.x;
        rows[j][e + 1] = step.of(j, e + 1) * scale * value.y;
      }
    }
  }
};

}  // namespace ninfer
