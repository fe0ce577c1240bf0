// Attention of new tokens over a paged cache.
//
// The query heads that share a key head and all new tokens of a sequence form the rows of one
// matrix, cut into row blocks. For few rows the keys are cut into segments too, which blocks
// process side by side and a second kernel merges in order; with one segment a block writes the
// result itself. A block has KEY_GROUPS groups of ROW_WARPS warps: a group takes every
// KEY_GROUPS-th tile of keys through its own ring, a warp of it OCTETS * 8 rows.
//
// Keys and values are the left operands of the tensor cores, rows the right one: a product has 16
// keys or 16 elements and 8 rows, so that the few rows of one new token fill it.
#include "ninfer/attention_rows.cuh"
#include "ninfer/elements.cuh"
#include "ninfer/hadamard.cuh"
#include "ninfer/kv_tile.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

constexpr int PAGE = 64;                  // tokens
constexpr int SUM_STRIDE = HEAD_DIM + 8;  // floats of a row of sums: rows start in other banks
constexpr int MIN_SEGMENT_PAGES = 2;

// Where one sequence's rows look: `total` keys, of which column c sees the first `before` + c + 1.
struct Span {
  int before, columns, total, segment_keys, segments;

  NINFER_DEVICE Span(int before, int columns, int max_segments)
      : before(before), columns(columns), total(before + columns) {
    const int pages = (total + PAGE - 1) / PAGE;
    const int per = max(MIN_SEGMENT_PAGES, (pages + max_segments - 1) / max_segments);
    segment_keys = per * PAGE;
    segments = (pages + per - 1) / per;
  }
};

struct Pages {
  const int* table;  // of this sequence
  u32 key_heads, key_head;

  // The row of a position in every plane.
  NINFER_DEVICE i64 row(int position) const {
    return ((i64)table[position / PAGE] * key_heads + key_head) * PAGE + position % PAGE;
  }
};

NINFER_DEVICE u16 gated(float value, u16 gate) {
  return float_to_bf16(value * sigmoid(bf16_to_float(gate)));
}

// Blocks of 4 warps whose registers a multiprocessor is to hold at once. Two codecs in one kernel
// need more registers, and of bf16 rows one block fills the shared memory anyway.
NINFER_DEVICE constexpr int resident_blocks(int key_codec, int value_codec, int octets) {
  return octets > 1 ? 1 : key_codec != value_codec ? 2 : 3;
}

// Blocks: [sequence][key head][row block, most keys first][segment].
// `partial_rows` [sequence][key head][row][segment][256] holds unnormalised sums, `partial_weights`
// [..][2] the largest score of the segment, in powers of two, and the sum of weights. FINAL: there
// is one segment, and `out` [sequence][column][head][256] is written instead.
template <int KC, int VC, int OCTETS, int ROW_WARPS, int KEY_GROUPS, int STAGES, bool FINAL>
__global__ __launch_bounds__(
    32 * ROW_WARPS * KEY_GROUPS,
    resident_blocks(KC, VC,
                    OCTETS)) void paged_attention_kernel(const u16* query, i64 query_sequence,
                                                         i64 query_column, i64 query_head,
                                                         const u16* gate, i64 gate_sequence,
                                                         i64 gate_column, i64 gate_head,
                                                         u16* final_out, const u8* key_codes,
                                                         const u8* key_scales,
                                                         const u8* value_codes,
                                                         const u8* value_scales, const int* tables,
                                                         u32 table_width, const int* table_rows,
                                                         const int* before, const int* new_columns,
                                                         float* partial_rows,
                                                         float* partial_weights, u32 columns,
                                                         u32 key_heads, u32 group, u32 row_blocks,
                                                         u32 max_segments, float scale) {
  extern __shared__ __align__(128) u8 shared[];
  constexpr int WARP_ROWS = 8 * OCTETS, ROWS = WARP_ROWS * ROW_WARPS,
                WARPS = ROW_WARPS * KEY_GROUPS;
  constexpr int STAGE = Tile<KC>::BYTES + Tile<VC>::BYTES;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int key_group = warp / ROW_WARPS, row_warp = warp % ROW_WARPS;
  const int member = row_warp * 32 + lane;
  u32 block = blockIdx.x;
  const u32 segment = block % max_segments;
  block /= max_segments;
  const u32 row_block = row_blocks - 1 - block % row_blocks;
  block /= row_blocks;
  const u32 key_head = block % key_heads, sequence = block / key_heads;
  const u32 queries = shared_address(shared);
  const u32 ring = queries + ROWS * HEAD_DIM * 2 + key_group * STAGES * STAGE;

  wait_for_previous_kernels();
  let_next_kernel_start();
  const int valid = new_columns[sequence], first_new = before[sequence];
  const int* table = tables + (i64)table_rows[sequence] * table_width;
  const Span span(first_new, valid, max_segments);
  const int first_row = row_block * ROWS, last_row = min(first_row + ROWS, valid * (int)group) - 1;
  if constexpr (FINAL) {
    // Rows of columns that do not exist.
    const int beyond = max(first_row, valid * (int)group);
    for (int r = beyond + warp; r < min(first_row + ROWS, (int)(columns * group)); r += WARPS) {
      const i64 token = (i64)sequence * columns + r / group;
      const i64 head = token * key_heads * group + key_head * group + r % group;
      *(uint4*)(final_out + head * HEAD_DIM + lane * 8) = make_uint4(0, 0, 0, 0);
    }
  }
  if (segment >= span.segments || last_row < first_row) return;
  const int begin = segment * span.segment_keys;
  const int visible = span.before + last_row / (int)group + 1;  // by the last row
  const int end = min(begin + span.segment_keys, visible);
  const u32 rows = columns * group;
  const i64 out = ((i64)sequence * key_heads + key_head) * rows;

  const Pages pages{table, key_heads, key_head};
  auto sync_group = [&] {
    if constexpr (ROW_WARPS == 1)
      __syncwarp();
    else
      asm volatile("bar.sync %0, %1;" ::"r"(1 + key_group), "n"(32 * ROW_WARPS) : "memory");
  };
  const int first_tile = begin + key_group * TILE;
  auto fill = [&](int tile) {  // `tile` counts the tiles of this group
    const int position = first_tile + tile * KEY_GROUPS * TILE;
    if (position < end) {
      const i64 row = pages.row(position);
      const u32 target = ring + tile % STAGES * STAGE;
      const int left = span.total - position;
      Tile<KC>::template copy<32 * ROW_WARPS>(target, key_codes, key_scales, row, left, member);
      Tile<VC>::template copy<32 * ROW_WARPS>(target + Tile<KC>::BYTES, value_codes, value_scales,
                                              row, left, member);
    }
    commit_tile();
  };
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) fill(i);
  place_queries<KC, ROWS, WARPS>(queries,
                                 query + sequence * query_sequence + key_head * group * query_head,
                                 query_column, query_head, group, first_row, valid, warp, lane);
  __syncthreads();

  Sums<OCTETS> acc = {};
  Softmax<OCTETS> soft;
  int last_key[OCTETS][2];  // that a row sees
  const int warp_row = first_row + row_warp * WARP_ROWS, own_row = warp_row + lane % 4 * 2;
#pragma unroll
  for (int o = 0; o < OCTETS; o++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      soft.largest[o][c] = NEVER;
      soft.total[o][c] = 0.f;
      last_key[o][c] = span.before + (own_row + o * 8 + c) / (int)group;
    }
  const int unmasked = span.before + warp_row / (int)group;  // all rows see it
  int tile = 0;
  for (int position = first_tile; position < end; position += KEY_GROUPS * TILE, tile++) {
    wait_for_tile<STAGES - 2>();
    sync_group();
    fill(tile + STAGES - 1);
    const u32 stage = ring + tile % STAGES * STAGE;
    float score[OCTETS][4];
    multiply_keys<KC, OCTETS>(score, queries + row_warp * WARP_ROWS * 512, stage, lane);
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
      for (int i = 0; i < 4; i++) score[o][i] *= scale * row_factor<KC>();
    if (position + TILE - 1 > unmasked) {
#pragma unroll
      for (int o = 0; o < OCTETS; o++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          if (position + lane / 4 + i / 2 * 8 > last_key[o][i % 2]) score[o][i] = NEVER * 2;
    }
    u32 weights[OCTETS][2];
    update_softmax<OCTETS>(soft, acc, score, weights);
    multiply_values<VC, OCTETS>(acc, weights, stage + Tile<KC>::BYTES, lane);
  }
#pragma unroll
  for (int o = 0; o < OCTETS; o++)
#pragma unroll
    for (int c = 0; c < 2; c++) soft.total[o][c] = sum_over_keys(soft.total[o][c]);

  if constexpr (FINAL) {
    if constexpr (VC == ROWS_NVFP4) transform_sums<OCTETS>(acc, lane);
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const int row = own_row + o * 8 + c, column = row / (int)group;
        if (row > last_row) continue;
        const u32 head = key_head * group + row % group;
        const u16* gates =
            gate + sequence * gate_sequence + column * gate_column + head * gate_head;
        u16* target =
            final_out + (((i64)sequence * columns + column) * key_heads * group + head) * HEAD_DIM;
        const float factor = row_factor<VC>() / soft.total[o][c];
        for_each_run<VC, OCTETS>(acc, o, c, lane, [&](int element, const auto& run) {
          constexpr int N = sizeof(run) / 4;
          const Pack<bf16, N> own_gates = *(const Pack<bf16, N>*)(gates + element);
          Pack<bf16, N> result;
#pragma unroll
          for (int i = 0; i < N; i++) result.set(i, run[i] * factor * sigmoid(own_gates[i]));
          *(Pack<bf16, N>*)(target + element) = result;
        });
      }
  } else if constexpr (KEY_GROUPS == 1) {
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const int row = own_row + o * 8 + c;
        if (row > last_row) continue;
        const i64 place = (out + row) * max_segments + segment;
        if (lane / 4 == 0)
          *(float2*)(partial_weights + 2 * place) =
              make_float2(soft.largest[o][c], soft.total[o][c]);
        for_each_run<VC, OCTETS>(acc, o, c, lane, [&](int element, auto run) {
          constexpr int N = sizeof(run) / 4;
#pragma unroll
          for (int i = 0; i < N; i++) run.element[i] *= row_factor<VC>();
          store_pack(partial_rows + place * HEAD_DIM + element, run);
        });
      }
  } else {
    // The groups' sums, relative to the largest score of all, are added in order.
    __shared__ float2 group_soft[KEY_GROUPS][ROWS];
    float* sums = (float*)shared;  // [group][row][SUM_STRIDE]: queries and rings are over
    asm volatile("cp.async.wait_all;" ::: "memory");
    const int own = row_warp * WARP_ROWS + lane % 4 * 2;
    if (lane / 4 == 0) {
#pragma unroll
      for (int o = 0; o < OCTETS; o++)
#pragma unroll
        for (int c = 0; c < 2; c++)
          group_soft[key_group][own + o * 8 + c] =
              make_float2(soft.largest[o][c], soft.total[o][c]);
    }
    __syncthreads();
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const int r = own + o * 8 + c;
        float largest = NEVER;
#pragma unroll
        for (int k = 0; k < KEY_GROUPS; k++) largest = fmaxf(largest, group_soft[k][r].x);
        const float factor = exp2_approx(soft.largest[o][c] - largest) * row_factor<VC>();
        if (first_row + r <= last_row)
          for_each_run<VC, OCTETS>(acc, o, c, lane, [&](int element, auto run) {
            constexpr int N = sizeof(run) / 4;
#pragma unroll
            for (int i = 0; i < N; i++) run.element[i] *= factor;
            store_pack(sums + (key_group * ROWS + r) * SUM_STRIDE + element, run);
          });
      }
    __syncthreads();
    for (int r = warp; r <= last_row - first_row; r += WARPS) {
      const i64 place = (out + first_row + r) * max_segments + segment;
      if (lane == 0) {
        float largest = NEVER, total = 0.f;
#pragma unroll
        for (int k = 0; k < KEY_GROUPS; k++) largest = fmaxf(largest, group_soft[k][r].x);
#pragma unroll
        for (int k = 0; k < KEY_GROUPS; k++)
          total += group_soft[k][r].y * exp2_approx(group_soft[k][r].x - largest);
        *(float2*)(partial_weights + 2 * place) = make_float2(largest, total);
      }
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int element = half * 128 + lane * 4;
        float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int k = 0; k < KEY_GROUPS; k++) {
          const float4 part = *(const float4*)(sums + (k * ROWS + r) * SUM_STRIDE + element);
          sum.x += part.x;
          sum.y += part.y;
          sum.z += part.z;
          sum.w += part.w;
        }
        *(float4*)(partial_rows + place * HEAD_DIM + element) = sum;
      }
    }
  }
}

// Merges the segments of one row in order, undoes the transform of the values and applies the gate.
// Blocks: [sequence][key head][row]; 256 threads.
template <bool TRANSFORMED>
__global__ __launch_bounds__(256, 2) void paged_attention_merge_kernel(
    const float* partial_rows, const float* partial_weights, const u16* gate, i64 gate_sequence,
    i64 gate_column, i64 gate_head, u16* out, const int* before, const int* new_columns,
    u32 columns, u32 key_heads, u32 group, u32 max_segments) {
  constexpr int PARTS = 4;  // of the segments, each summed by 64 threads
  __shared__ float factor[256], maxima[8];
  __shared__ float4 sums[PARTS][64];
  __shared__ float values[256];
  const u32 rows = columns * group, row = blockIdx.x % rows;
  const u32 key_head = blockIdx.x / rows % key_heads, sequence = blockIdx.x / rows / key_heads;
  const u32 column = row / group, head = key_head * group + row % group;
  const int thread = threadIdx.x;
  wait_for_previous_kernels();
  let_next_kernel_start();
  const int valid = new_columns[sequence], first_new = before[sequence];
  const i64 token = (i64)sequence * columns + column;
  const u16* gates = gate + sequence * gate_sequence + column * gate_column + head * gate_head;
  const u16 own_gate = gates[thread];
  u16* target = out + (token * key_heads * group + head) * HEAD_DIM;
  if ((int)column >= valid) {
    target[thread] = 0;
    return;
  }
  const Span span(first_new, valid, max_segments);
  const i64 place = (i64)blockIdx.x * max_segments;
  float2 soft = make_float2(NEVER, 0.f);
  if (thread < span.segments) soft = *(const float2*)(partial_weights + 2 * (place + thread));
  const float own = warp_max(soft.x);
  if (thread % 32 == 0) maxima[thread / 32] = own;
  __syncthreads();
  float largest = NEVER;
#pragma unroll
  for (int i = 0; i < 8; i++) largest = fmaxf(largest, maxima[i]);
  const float mine = exp2_approx(soft.x - largest);
  factor[thread] = soft.y > 0.f ? mine : 0.f;
  __syncthreads();
  const float weight = warp_sum(soft.y * factor[thread]);
  if (thread % 32 == 0) maxima[thread / 32] = weight;
  const int part = thread / 64, quad = thread % 64;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 8
  for (int i = part; i < span.segments; i += PARTS) {
    const float f = factor[i];
    const float4 v = *(const float4*)(partial_rows + (place + i) * HEAD_DIM + quad * 4);
    sum.x = fmaf(f, v.x, sum.x);
    sum.y = fmaf(f, v.y, sum.y);
    sum.z = fmaf(f, v.z, sum.z);
    sum.w = fmaf(f, v.w, sum.w);
  }
  sums[part][quad] = sum;
  __syncthreads();
  float total = 0.f, value = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) total += maxima[i];
#pragma unroll
  for (int i = 0; i < PARTS; i++) value += ((const float*)sums[i])[thread];
  value /= total;
  if constexpr (TRANSFORMED) {
    values[thread] = value;
    __syncthreads();
    if (thread < 32) {
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; i++) x[i] = values[thread * 8 + i];
      hadamard_256(x, thread);
#pragma unroll
      for (int i = 0; i < 8; i++) values[thread * 8 + i] = x[i];
    }
    __syncthreads();
    value = values[thread];
  }
  target[thread] = gated(value, own_gate);
}

}  // namespace ninfer
