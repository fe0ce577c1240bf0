// What a warp of prefill attention keeps of its 16 rows: lane 4g+q holds of rows g and g+8 elements
// 2q and 2q+1 of every eight keys or components.
#pragma once
#include "ninfer/attention_work.cuh"
#include "ninfer/elements.cuh"
#include "ninfer/hadamard.cuh"
#include "ninfer/page_tile.cuh"
#include "ninfer/paged_spans.cuh"
#include "ninfer/reduce.cuh"
#include "ninfer/softmax.cuh"

namespace ninfer {

constexpr int EIGHTHS = HEAD_DIM / 8;
using RowSums = float[EIGHTHS][4];

// Running softmax of rows g and g+8. `largest` is a score as the products give it, `scale` makes
// powers of two of it, `total` is a sum over the keys of this lane.
struct RowSoftmax {
  float largest[2], total[2], scale[2];
};

// Eight rows from `first` on, those from `end` on as zeros; lane l holds elements 8l to 8l+7.
NINFER_DEVICE void load_rows(uint4 (&words)[8], const HeadRows& rows, int first, int end,
                             int lane) {
#pragma unroll
  for (int g = 0; g < 8; g++)
    words[g] =
        first + g < end ? load_global_16(rows.row(first + g) + lane * 8) : make_uint4(0, 0, 0, 0);
}

// Transforms a query row of bf16 to f16; returns what to multiply its scores with.
NINFER_DEVICE float transform_query(uint4& words, int lane) {
  float x[8], largest = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] = bf16_to_float((u16)(word_of(words, i / 2) >> (i % 2 * 16)));
  hadamard_256(x, lane);
#pragma unroll
  for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(x[i]));
  const RowShrink shrink(warp_max(largest));
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] *= shrink.factor;
  words = make_uint4(f16_pair(x[0], x[1]), f16_pair(x[2], x[3]), f16_pair(x[4], x[5]),
                     f16_pair(x[6], x[7]));
  return shrink.inverse;
}

// Places 16 query rows from `first` on in a tile of ROWS rows at row `tile_row`, as f16 (bf16 for
// bf16 keys); rows that do not exist become zeros.
template <int KC, int ROWS>
NINFER_DEVICE void place_query_rows(RowSoftmax& soft, u32 tile, int tile_row, const HeadRows& query,
                                    int first, int end, float scale, int lane) {
#pragma unroll
  for (int c = 0; c < 2; c++) {
    soft.largest[c] = NEVER;
    soft.total[c] = 0.f;
    soft.scale[c] = scale * tile_factor<KC>();
    uint4 words[8];
    load_rows(words, query, first + 8 * c, end, lane);
#pragma unroll
    for (int g = 0; g < 8; g++) {
      if (KC != ROWS_BF16 && first + 8 * c + g < end) {
        const float inverse = transform_query(words[g], lane);
        if (lane / 4 == g) soft.scale[c] *= inverse;
      }
      store_shared_16(tile + chunk_offset<ROWS>(tile_row + 8 * c + g, lane), words[g]);
    }
  }
}

// Scores of keys that a row does not see, those after `last_key`, become -infinity.
template <int N>
NINFER_DEVICE void mask_scores(float (&score)[N][4], int position, const int (&last_key)[2],
                               int lane) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (position + n * 8 + lane % 4 * 2 + i % 2 > last_key[i / 2])
        score[n][i] = __uint_as_float(0xff800000u);
}

// Scores to weights relative to the largest so far; what has been summed before shrinks by
// `correction`. Returns whether anything shrinks in this warp.
template <int N>
NINFER_DEVICE bool weigh_scores(RowSoftmax& soft, float (&score)[N][4], float (&correction)[2]) {
  bool grows = false;
#pragma unroll
  for (int c = 0; c < 2; c++) {
    float largest = soft.largest[c];
#pragma unroll
    for (int n = 0; n < N; n++)
      largest = fmaxf(largest, fmaxf(score[n][2 * c], score[n][2 * c + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    grows |= largest != soft.largest[c];
    correction[c] = exp2_approx((soft.largest[c] - largest) * soft.scale[c]);
    const float offset = -largest * soft.scale[c];
    float sum = 0.f;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int i = 2 * c; i < 2 * c + 2; i++) {
        score[n][i] = exp2_approx(fmaf(score[n][i], soft.scale[c], offset));
        sum += score[n][i];
      }
    soft.total[c] = soft.total[c] * correction[c] + sum;
    soft.largest[c] = largest;
  }
  return __any_sync(~0u, grows);
}

NINFER_DEVICE void shrink_sums(RowSums& acc, const float (&correction)[2]) {
#pragma unroll
  for (int n = 0; n < EIGHTHS; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) acc[n][i] *= correction[i / 2];
}

// Weights of keys 16k to 16k+15 as an A fragment.
template <int N>
NINFER_DEVICE void weight_fragment(const float (&weight)[N][4], int k, u32 (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++)
    a[i] = f16_pair(weight[2 * k + i / 2][i % 2 * 2], weight[2 * k + i / 2][i % 2 * 2 + 1]);
}

// The Hadamard transform of both rows: components 2q and 2q+1 of every eight are here, the others
// in the three neighbouring lanes.
NINFER_DEVICE void transform_row_sums(RowSums& acc, int lane) {
#pragma unroll
  for (int d = 1; d < EIGHTHS; d *= 2)
#pragma unroll
    for (int n = 0; n < EIGHTHS; n++)
      if ((n & d) == 0) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const float a = acc[n][i], b = acc[n + d][i];
          acc[n][i] = a + b;
          acc[n + d][i] = a - b;
        }
      }
#pragma unroll
  for (int n = 0; n < EIGHTHS; n++) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const float a = acc[n][i], b = acc[n][i + 1];
      acc[n][i] = a + b;
      acc[n][i + 1] = a - b;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
      for (int d = 1; d < 4; d *= 2) {
        const float other = __shfl_xor_sync(~0u, acc[n][i], d);
        acc[n][i] = lane & d ? other - acc[n][i] : acc[n][i] + other;
      }
      acc[n][i] *= 1.f / 16;
    }
  }
}

// The sum of weights of a row over the lanes that hold its keys.
NINFER_DEVICE float row_total(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// Writes the gated results of 16 rows from `first` on, those before `end`. Gates and results pass
// through the tile of the queries, so that whole rows are read and written.
template <int VC, int ROWS>
NINFER_DEVICE void write_results(RowSums& acc, const RowSoftmax& soft, const HeadRows& gate,
                                 const OutputRows& out, u32 tile, int tile_row, int first, int end,
                                 int lane) {
  const int count = min(16, end - first);
  for (int r = 0; r < count; r++)
    copy_chunk(tile + chunk_offset<ROWS>(tile_row + r, lane), gate.row(first + r) + lane * 8, 16);
  if constexpr (VC == ROWS_NVFP4) transform_row_sums(acc, lane);
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncwarp();
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const float factor = tile_factor<VC>() / row_total(soft.total[c]);
    const u32 row = tile + lane % 4 * 4;
#pragma unroll
    for (int n = 0; n < EIGHTHS; n++) {
      const u32 place = row + chunk_offset<ROWS>(tile_row + 8 * c + lane / 4, n);
      const u32 gates = load_shared_4(place);
      const float low = acc[n][2 * c] * factor * sigmoid(bf16_to_float((u16)gates));
      const float high = acc[n][2 * c + 1] * factor * sigmoid(bf16_to_float((u16)(gates >> 16)));
      *(u32*)shared_pointer(place) = float_to_bf16(low) | (u32)float_to_bf16(high) << 16;
    }
  }
  __syncwarp();
  for (int r = 0; r < count; r++)
    *(uint4*)(out.row(first + r) + lane * 8) =
        load_shared_16(tile + chunk_offset<ROWS>(tile_row + r, lane));
}

// Leaves the sums of one segment to be merged; `place` is that of row 0.
template <int VC>
NINFER_DEVICE void write_partial(const RowSums& acc, const RowSoftmax& soft, const PartialSums& out,
                                 i64 place, int first, int end, int lane) {
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const float total = row_total(soft.total[c]);
    const int row = first + lane / 4 + 8 * c;
    if (row >= end) continue;
    const i64 own = place + (i64)row * out.segments;
    if (lane % 4 == 0) out.set_weight(own, soft.largest[c] * soft.scale[c], total);
    float* target = out.row(own) + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < EIGHTHS; n++)
      *(float2*)(target + n * 8) =
          make_float2(acc[n][2 * c] * tile_factor<VC>(), acc[n][2 * c + 1] * tile_factor<VC>());
  }
}

}  // namespace ninfer
