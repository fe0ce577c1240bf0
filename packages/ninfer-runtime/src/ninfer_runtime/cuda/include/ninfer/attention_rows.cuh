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

// Puts query rows `first` to `end` - 1 in the order of B fragments, f16 (bf16 for bf16 keys):
// [octet][step][lane][2 words]. `factors` [ROWS] is what to multiply their scores with.
template <int C, int ROWS, int WARPS>
NINFER_DEVICE void place_queries(u32 target, float* factors, const HeadRows& query,
                                 const QueryNorm& norm, int first, int end, int warp, int lane) {
  constexpr int OWN = (ROWS + WARPS - 1) / WARPS;  // of a warp
  const FragmentPlace place = query_place<C>(lane);
  float scale[8] = {};
  if (norm.weight) load_row(norm.weight, lane, scale);
  uint4 words[OWN];
#pragma unroll
  for (int k = 0; k < OWN; k++) {
    const int r = warp + k * WARPS;
    words[k] = r < ROWS && first + r < end ? load_global_16(query.row(first + r) + lane * 8)
                                           : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int k = 0; k < OWN; k++) {
    uint4& row = words[k];
    const int r = warp + k * WARPS;
    if (r >= ROWS) break;
    float factor = row_factor<C>();
    if (first + r < end && (norm.weight || C != ROWS_BF16)) {
      const i64 angles = (i64)((first + r) / query.group) * norm.pairs;
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
        const RowShrink shrink(warp_max(largest));
        factor *= shrink.inverse;
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] *= shrink.factor;
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
    const u32 fragment = target + (r / 8 * 16 + place.step) * 256 + (r % 8 * 4 + place.q) * 8;
    *(uint2*)shared_pointer(fragment) = make_uint2(row.x, row.y);
    *(uint2*)shared_pointer(fragment + 256) = make_uint2(row.z, row.w);
  }
}

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

// Running softmax of rows 2q and 2q+1 of each octet: the largest score, the same in all warps, and the
// sum of weights over the keys of this lane.
template <int OCTETS>
struct Softmax {
  float largest[OCTETS][2], total[OCTETS][2];

  NINFER_DEVICE Softmax() {
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        largest[o][c] = NEVER;
        total[o][c] = 0.f;
      }
  }
};

// What the warps of a block tell one another, in shared memory: the largest score of each row among a
// warp's keys of a tile, the weights of these keys as B fragments, and at the end of a segment their
// sums.
template <int OCTETS, int WARPS>
struct TileWeights {
  float largest[WARPS][8 * OCTETS], total[WARPS][8 * OCTETS];
  uint2 fragment[WARPS][OCTETS][32];
};

// Tells the others the largest of a warp's scores of 16 keys.
template <int OCTETS, int WARPS>
NINFER_DEVICE void tell_largest(TileWeights<OCTETS, WARPS>& tile, const float (&score)[OCTETS][4],
                                int warp, int lane) {
#pragma unroll
  for (int o = 0; o < OCTETS; o++) {
    const float first = largest_over_keys(fmaxf(score[o][0], score[o][2]));
    const float second = largest_over_keys(fmaxf(score[o][1], score[o][3]));
    if (lane < 4) *(float2*)&tile.largest[warp][o * 8 + lane * 2] = make_float2(first, second);
  }
}

// These scores become weights in `tile`, relative to the largest so far of all keys, once all have told
// theirs; `acc` follows when that grows.
template <int OCTETS, int WARPS>
NINFER_DEVICE void weigh_keys(Softmax<OCTETS>& soft, Sums<OCTETS, WARPS>& acc,
                              TileWeights<OCTETS, WARPS>& tile, const float (&score)[OCTETS][4],
                              int warp, int lane) {
  const int own = lane % 4 * 2;  // row of an octet
#pragma unroll
  for (int o = 0; o < OCTETS; o++) {
    float2 largest = make_float2(soft.largest[o][0], soft.largest[o][1]);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float2 other = *(const float2*)&tile.largest[w][o * 8 + own];
      largest.x = fmaxf(largest.x, other.x);
      largest.y = fmaxf(largest.y, other.y);
    }
    const float correction[2] = {exp2_approx(soft.largest[o][0] - largest.x),
                                 exp2_approx(soft.largest[o][1] - largest.y)};
    const bool grows = largest.x != soft.largest[o][0] || largest.y != soft.largest[o][1];
    if (__any_sync(~0u, grows)) {
#pragma unroll
      for (int m = 0; m < HEAD_DIM / 16 / WARPS; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[m][o][i] *= correction[i % 2];
    }
    soft.largest[o][0] = largest.x;
    soft.largest[o][1] = largest.y;
    float p[4];
#pragma unroll
    for (int i = 0; i < 4; i++) p[i] = exp2_approx(score[o][i] - soft.largest[o][i % 2]);
#pragma unroll
    for (int c = 0; c < 2; c++)
      soft.total[o][c] = soft.total[o][c] * correction[c] + (p[c] + p[c + 2]);
    tile.fragment[warp][o][lane] =
        make_uint2(transposed(f16_pair(p[0], p[1])), transposed(f16_pair(p[2], p[3])));
  }
}

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
// their sums of weights in `tile`.
template <int C, int OCTETS, int WARPS>
NINFER_DEVICE void leave_sums(const PartialSums& out, i64 place, const Sums<OCTETS, WARPS>& acc,
                              const Softmax<OCTETS>& soft, TileWeights<OCTETS, WARPS>& tile,
                              int count, int warp, int lane) {
  const int own = lane % 4 * 2;
#pragma unroll
  for (int o = 0; o < OCTETS; o++) {
    const float first = sum_over_keys(soft.total[o][0]), second = sum_over_keys(soft.total[o][1]);
    if (lane < 4) *(float2*)&tile.total[warp][o * 8 + own] = make_float2(first, second);
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const int row = o * 8 + own + c;
      if (row >= count) continue;
      float* target = out.row(place + (i64)row * out.segments) + warp * (HEAD_DIM / WARPS);
#pragma unroll
      for (int m = 0; m < HEAD_DIM / 16 / WARPS; m++)
        store_fragment<C>(target, m, acc[m][o][c] * value_factor<C>(),
                          acc[m][o][2 + c] * value_factor<C>(), lane);
    }
  }
  __syncthreads();
  if (warp != 0 || lane >= 4) return;
#pragma unroll
  for (int o = 0; o < OCTETS; o++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const int row = o * 8 + own + c;
      float total = 0.f;
#pragma unroll
      for (int w = 0; w < WARPS; w++) total += tile.total[w][row];
      if (row < count)
        out.set_weight(place + (i64)row * out.segments, soft.largest[o][c], total);
    }
}

}  // namespace ninfer
