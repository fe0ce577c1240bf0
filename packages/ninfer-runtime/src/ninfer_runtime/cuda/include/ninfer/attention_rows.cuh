// What a warp of attention keeps of its rows: queries as fragments, running softmax and sums.
#pragma once
#include "ninfer/elements.cuh"
#include "ninfer/hadamard.cuh"
#include "ninfer/kv_tile.cuh"
#include "ninfer/paged_spans.cuh"
#include "ninfer/reduce.cuh"
#include "ninfer/softmax.cuh"

namespace ninfer {

// Query rows `first` to `end` - 1 in the order of B fragments, f16 (bf16 for bf16 keys):
// [octet][step][lane][2 words]. `factors` [ROWS] is what to multiply their scores with.
template <int C, int ROWS, int WARPS>
NINFER_DEVICE void place_queries(u32 target, float* factors, const HeadRows& query, int first,
                                 int end, int warp, int lane) {
  constexpr int OWN = (ROWS + WARPS - 1) / WARPS;  // of a warp
  const FragmentPlace place = query_place<C>(lane);
  uint4 rows[OWN];
#pragma unroll
  for (int k = 0; k < OWN; k++) {
    const int r = warp + k * WARPS;
    rows[k] = r < ROWS && first + r < end ? load_global_16(query.row(first + r) + lane * 8)
                                          : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int k = 0; k < OWN; k++) {
    const int r = warp + k * WARPS;
    if (r >= ROWS) break;
    u32 words[4] = {};
    float factor = row_factor<C>();
    if (C == ROWS_BF16) {
#pragma unroll
      for (int j = 0; j < 4; j++) words[j] = word_of(rows[k], j);
    } else if (first + r < end) {
      float x[8], largest = 0.f;
#pragma unroll
      for (int i = 0; i < 8; i++)
        x[i] = bf16_to_float((u16)(word_of(rows[k], i / 2) >> (i % 2 * 16)));
      hadamard_256(x, lane);
#pragma unroll
      for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(x[i]));
      const RowShrink shrink(warp_max(largest));
      factor *= shrink.inverse;
#pragma unroll
      for (int j = 0; j < 4; j++)
        words[j] = f16_pair(x[pair_element<C>(j, 0)] * shrink.factor,
                              x[pair_element<C>(j, 1)] * shrink.factor);
    }
    if (lane == 0) factors[r] = factor;
    const u32 fragment = target + (r / 8 * 16 + place.step) * 256 + (r % 8 * 4 + place.q) * 8;
#pragma unroll
    for (int j = 0; j < 2; j++)
      *(uint2*)shared_pointer(fragment + j * 256) = make_uint2(words[2 * j], words[2 * j + 1]);
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

// Running softmax of rows 2q and 2q+1 of each octet of a warp; `total` is over the keys of this
// lane.
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

  NINFER_DEVICE void add_lanes() {
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
      for (int c = 0; c < 2; c++) total[o][c] = sum_over_keys(total[o][c]);
  }
};

// Scores to weights relative to the largest so far, as B fragments; `acc` follows when that grows.
template <int OCTETS>
NINFER_DEVICE void update_softmax(Softmax<OCTETS>& soft, Sums<OCTETS>& acc,
                                  const float (&score)[OCTETS][4], u32 (&weights)[OCTETS][2]) {
  float largest[OCTETS][2], correction[OCTETS][2];
  bool grows = false;
#pragma unroll
  for (int o = 0; o < OCTETS; o++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const float m = largest_over_keys(fmaxf(score[o][c], score[o][c + 2]));
      largest[o][c] = fmaxf(soft.largest[o][c], m);
      correction[o][c] = exp2_approx(soft.largest[o][c] - largest[o][c]);
      grows |= largest[o][c] != soft.largest[o][c];
    }
  if (__any_sync(~0u, grows)) {
#pragma unroll
    for (int n = 0; n < HEAD_DIM / 16; n++)
#pragma unroll
      for (int o = 0; o < OCTETS; o++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[n][o][i] *= correction[o][i % 2];
  }
#pragma unroll
  for (int o = 0; o < OCTETS; o++) {
    float p[4];
#pragma unroll
    for (int i = 0; i < 4; i++) p[i] = exp2_approx(score[o][i] - largest[o][i % 2]);
#pragma unroll
    for (int c = 0; c < 2; c++) {
      soft.total[o][c] = soft.total[o][c] * correction[o][c] + (p[c] + p[c + 2]);
      soft.largest[o][c] = largest[o][c];
    }
    weights[o][0] = transposed(f16_pair(p[0], p[1]));
    weights[o][1] = transposed(f16_pair(p[2], p[3]));
  }
}

// Calls function(element, values) for each run of neighbouring elements that this lane holds of row
// 2q + `odd` of an octet: those of one chunk, E/8 of them.
template <int C, int OCTETS, class F>
NINFER_DEVICE void for_each_run(const Sums<OCTETS>& acc, int octet, int odd, int lane, F function) {
  constexpr int E = RowShape<C>::PER_CHUNK, SUBS = E / 8;
#pragma unroll
  for (int chunk = 0; chunk < RowShape<C>::CHUNKS; chunk++) {
    Pack<float, SUBS> run;
#pragma unroll
    for (int i = 0; i < SUBS; i++) {
      const int n = chunk * SUBS + i;
      run.element[i] = acc[n / 2][octet][n % 2 * 2 + odd];
    }
    function(chunk * E + SUBS * (lane / 4), run);
  }
}

}  // namespace ninfer
