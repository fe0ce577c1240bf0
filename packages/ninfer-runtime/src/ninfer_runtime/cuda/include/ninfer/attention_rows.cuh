// The rows of attention of few new tokens: queries as fragments, running softmax and sums.
#pragma once
#include "ninfer/attention_heads.cuh"
#include "ninfer/attention_work.cuh"
#include "ninfer/elements.cuh"
#include "ninfer/hadamard.cuh"
#include "ninfer/kv_tile.cuh"
#include "ninfer/reduce.cuh"
#include "ninfer/softmax.cuh"

namespace ninfer {

// What makes queries of the heads of a sequence; without a weight they are ready, and no pairs are
// rotated.
struct QueryNorm {
  const bf16* weight;
  const float *cosines, *sines;  // of the sequence's first column
  int pairs;
  float eps;
};

// Query rows `first` to `end` - 1 on their way into the order of B fragments, f16 (bf16 for bf16 keys):
// [step][lane][2 words]. Each of WARPS warps has some.
template <int C, int WARPS>
struct QueryRows {
  static constexpr int ROWS = 8, OWN = (ROWS + WARPS - 1) / WARPS;  // of a block, of a warp
  uint4 words[OWN];

  NINFER_DEVICE void load(const HeadRows& query, int first, int end, int warp, int lane) {
#pragma unroll
    for (int k = 0; k < OWN; k++) {
      const int r = warp + k * WARPS;
      words[k] = r < ROWS && first + r < end ? load_global_16(query.row(first + r) + lane * 8)
                                             : make_uint4(0, 0, 0, 0);
    }
  }

  // Makes them ready and puts them into shared memory; `factors` [ROWS] is what to multiply their
  // scores with.
  NINFER_DEVICE void place(u32 target, float* factors, u32 group, const QueryNorm& norm, int first,
                           int end, int warp, int lane) {
    const FragmentPlace place = query_place<C>(lane);
    float scale[8] = {};
    if (norm.weight) load_row(norm.weight, lane, scale);
#pragma unroll
    for (int k = 0; k < OWN; k++) {
      uint4& row = words[k];
      const int r = warp + k * WARPS;
      if (r >= ROWS) break;
      float factor = row_factor<C>();
      if (first + r < end && (norm.weight || C != ROWS_BF16)) {
        const i64 angles = (i64)((first + r) / group) * norm.pairs;
        const Rotation rotation(norm.cosines + angles, norm.sines + angles, norm.pairs, lane);
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
          x[i] = bf16_to_float((u16)(word_of(row, i / 2) >> (i % 2 * 16)));
        if (norm.weight) {
          normalise_and_rotate(x, scale, rotation, norm.eps, lane);
#pragma unroll
          for (int i = 0; i < 8; i++) x[i] = bf16_to_float(float_to_bf16(x[i]));
        }
        if constexpr (C != ROWS_BF16) {
          float largest = 0.f;
          hadamard_256(x, lane);
#pragma unroll
          for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(x[i]));
          if (__any_sync(~0u, RowShrink::is_needed(largest))) {
            const RowShrink shrink(warp_max(largest));
            factor *= shrink.inverse;
#pragma unroll
            for (int i = 0; i < 8; i++) x[i] *= shrink.factor;
          }
        }
        u32 pairs[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const float low = x[pair_element<C>(j, 0)], high = x[pair_element<C>(j, 1)];
          pairs[j] = C == ROWS_BF16 ? bf16_pair(low, high) : f16_pair(low, high);
        }
        row = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      }
      if (lane == 0) factors[r] = factor;
      const u32 fragment = target + place.step * 256 + (r * 4 + place.q) * 8;
      *(uint2*)shared_pointer(fragment) = make_uint2(row.x, row.y);
      *(uint2*)shared_pointer(fragment + 256) = make_uint2(row.z, row.w);
    }
  }
};

NINFER_DEVICE u32 transposed(u32 x) {
  u32 r;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(x));
  return r;
}

// The largest and the sum over the 8 lanes that hold other keys of the same rows.
NINFER_DEVICE float largest_over_keys(float x) {
#pragma unroll
  for (int d = 4; d < 32; d *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
  return x;
}
NINFER_DEVICE float sum_over_keys(float x) {
#pragma unroll
  for (int d = 4; d < 32; d *= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}

// What the warps of a block tell one another, in shared memory: of the keys of each the exponents that
// the weights of the rows are relative to, and at the end of a segment the sums of weights.
template <int WARPS>
struct RoundWeights {
  float exponent[2][WARPS][8];  // of rounds in turns
  float total[WARPS][8];
};

// Weights of a warp's scores of 16 keys as a B fragment, relative to a power of two that is at least as
// large as the largest of its row, and 64 times as large, so that small ones keep their bits.
struct OwnWeights {
  uint2 fragment;
  float sum[2], exponent[2];  // rows 2q and 2q+1, the sum over the keys of this lane

  NINFER_DEVICE OwnWeights(const float (&score)[4], float (&exponents)[8], int lane) {
    float p[4];
#pragma unroll
    for (int c = 0; c < 2; c++)
      exponent[c] = fmaxf(ceilf(largest_over_keys(fmaxf(score[c], score[c + 2]))), NEVER);
    if (lane < 4) *(float2*)&exponents[2 * lane] = make_float2(exponent[0], exponent[1]);
#pragma unroll
    for (int i = 0; i < 4; i++) p[i] = exp2_approx(score[i] - (exponent[i % 2] - 6.f));
#pragma unroll
    for (int c = 0; c < 2; c++) sum[c] = p[c] + p[c + 2];
    fragment = make_uint2(transposed(f16_pair(p[0], p[1])), transposed(f16_pair(p[2], p[3])));
  }
};

// What a warp knows of a segment up to some round: sums of values for its part of the elements, and of
// the weights of its keys, relative to a power of two for each row.
template <int WARPS>
struct SegmentSums {
  Sums<WARPS> values;
  float total[2], exponent[2];  // rows 2q and 2q+1, over the keys of this lane
  float own_exponent;           // of row g

  NINFER_DEVICE void clear() {
#pragma unroll
    for (int m = 0; m < HEAD_DIM / 16 / WARPS; m++)
#pragma unroll
      for (int i = 0; i < 4; i++) values[m][i] = 0.f;
    total[0] = total[1] = 0.f;
    exponent[0] = exponent[1] = own_exponent = NEVER;
  }

  // Makes what is there relative to the exponents of a round if these are larger. Returns what to
  // multiply the weights of row g of each warp with, as f16x2.
  NINFER_DEVICE void follow(const float (&exponents)[WARPS][8], u32 (&factor)[WARPS], int lane) {
    float of_warp[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      of_warp[w] = exponents[w][lane / 4];
      own_exponent = fmaxf(own_exponent, of_warp[w]);
    }
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float f = exp2_approx(of_warp[w] - own_exponent);
      factor[w] = f16_pair(f, f);
    }
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const float now = __shfl_sync(~0u, own_exponent, lane % 4 * 8 + c * 4);
      const float correction = exp2_approx(exponent[c] - now);
      exponent[c] = now;
      total[c] *= correction;
#pragma unroll
      for (int m = 0; m < HEAD_DIM / 16 / WARPS; m++) {
        values[m][c] *= correction;
        values[m][2 + c] *= correction;
      }
    }
  }
};

// Rows 2q and 2q+1 of fragment m: neighbouring elements that this lane holds, from `row` on.
template <int C>
NINFER_DEVICE void store_fragment(float* row, int m, float first, float second, int lane) {
  constexpr int E = RowShape<C>::PER_CHUNK, SUBS = E / 8;  // neighbours of a lane in a chunk
  const int n = 2 * m;
  if constexpr (SUBS == 1) {
    row[n * E + lane / 4] = first;
    row[(n + 1) * E + lane / 4] = second;
  } else {
    *(float2*)(row + n / SUBS * E + SUBS * (lane / 4) + n % SUBS) = make_float2(first, second);
  }
}

// Leaves the sums of a segment to be merged, `count` rows from `place` on; by all warps, which exchange
// their sums of weights in `totals`.
template <int C, int WARPS>
NINFER_DEVICE void leave_sums(const PartialSums& out, i64 place, const SegmentSums<WARPS>& sums,
                              float (&totals)[WARPS][8], int count, int warp, int lane) {
  const float first = sum_over_keys(sums.total[0]), second = sum_over_keys(sums.total[1]);
  if (lane < 4) *(float2*)&totals[warp][2 * lane] = make_float2(first, second);
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const int row = lane % 4 * 2 + c;
    if (row >= count) continue;
    float* target = out.row(place + (i64)row * out.segments) + warp * (HEAD_DIM / WARPS);
#pragma unroll
    for (int m = 0; m < HEAD_DIM / 16 / WARPS; m++)
      store_fragment<C>(target, m, sums.values[m][c] * row_factor<C>(),
                        sums.values[m][2 + c] * row_factor<C>(), lane);
  }
  __syncthreads();
  if (warp != 0 || lane >= 4) return;
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const int row = lane * 2 + c;
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) total += totals[w][row];
    if (row < count) out.set_weight(place + (i64)row * out.segments, sums.exponent[c], total);
  }
}

}  // namespace ninfer
