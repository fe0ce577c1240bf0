// Attention of few new tokens over a paged cache.
//
// The query heads that share a key head and all new tokens of a sequence form the rows of one
// matrix. The keys are cut into segments, which blocks process side by side and merge.cu puts
// together in order. A block has KEY_GROUPS groups of ROW_WARPS warps: a group takes every
// KEY_GROUPS-th tile of keys through its own ring, a warp of it OCTETS * 8 rows.
//
// Keys and values are the left operands of the tensor cores, rows the right one: a product has 16
// keys or 16 elements and 8 rows, so that the few rows of one new token fill it.
#include "ninfer/attention_rows.cuh"
#include "ninfer/attention_work.cuh"
#include "ninfer/launch_order.cuh"

namespace ninfer {

constexpr int SUM_STRIDE = HEAD_DIM + 8;  // floats of a row of sums: rows start in other banks

// Blocks whose registers a multiprocessor is to hold at once. Two codecs in one kernel need more
// registers, and of bf16 rows few blocks fill the shared memory anyway.
template <int KC, int VC, int OCTETS, int WARPS>
constexpr int RESIDENT = OCTETS > 1 || WARPS > 12 ? 1 : (KC != VC ? 8 : 12) / WARPS;

// The tiles of one group of warps: every KEY_GROUPS-th of the keys from `begin` to `end`.
template <int KC, int VC, int ROW_WARPS, int KEY_GROUPS, int STAGES>
struct TileRing {
  static constexpr int STAGE = Tile<KC>::BYTES + Tile<VC>::BYTES, STEP = KEY_GROUPS * TILE;
  const u8 *key_codes, *key_scales, *value_codes, *value_scales;
  Pages pages;
  u32 place;
  int begin, end, total, member, group;

  NINFER_DEVICE u32 stage(int tile) const { return place + tile % STAGES * STAGE; }

  // The page of a tile, to be known in time for `fill`.
  NINFER_DEVICE int page(int tile) const {
    const int position = begin + tile * STEP;
    return position < end ? pages.table[position / PAGE] : 0;
  }

  NINFER_DEVICE void fill(int tile, int page) const {
    const int position = begin + tile * STEP;
    if (position < end) {
      const i64 row = ((i64)page * pages.key_heads + pages.key_head) * PAGE + position % PAGE;
      const u32 target = stage(tile);
      const int left = total - position;
      Tile<KC>::template copy<32 * ROW_WARPS>(target, key_codes, key_scales, row, left, member);
      Tile<VC>::template copy<32 * ROW_WARPS>(target + Tile<KC>::BYTES, value_codes, value_scales,
                                              row, left, member);
    }
    commit_tile();
  }

  // Waits for a tile, which every warp of the group then may read, and refills the one before it.
  NINFER_DEVICE void advance(int tile, int next_page) const {
    wait_for_tile<STAGES - 2>();
    if constexpr (ROW_WARPS == 1)
      __syncwarp();
    else
      asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(32 * ROW_WARPS) : "memory");
    fill(tile + STAGES - 1, next_page);
  }
};

// Rows 2q and 2q+1 of each octet of a warp: the keys that they see and the factors of their scores.
template <int OCTETS>
struct OwnRows {
  int last_key[OCTETS][2], unmasked;  // all rows of the warp see keys up to `unmasked`
  float factor[OCTETS][2];

  NINFER_DEVICE OwnRows(int warp_row, const float* factors, float scale, int before, int group,
                        int lane)
      : unmasked(before + warp_row / group) {
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const int own = o * 8 + lane % 4 * 2 + c;
        last_key[o][c] = before + (warp_row + own) / group;
        factor[o][c] = factors[own] * scale;
      }
  }

  // Scores in powers of two, those of keys that a row does not see as good as none.
  NINFER_DEVICE void scale_and_mask(float (&score)[OCTETS][4], int position, int lane) const {
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
      for (int i = 0; i < 4; i++) score[o][i] *= factor[o][i % 2];
    if (position + TILE - 1 <= unmasked) return;
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (position + lane / 4 + i / 2 * 8 > last_key[o][i % 2]) score[o][i] = NEVER * 2;
  }
};

// The sums of the only group; a warp's rows begin at `warp_row`. `place` is that of row 0.
template <int VC, int OCTETS>
NINFER_DEVICE void leave_sums(const PartialSums& out, i64 place, const Sums<OCTETS>& acc,
                              const Softmax<OCTETS>& soft, int warp_row, int end_row, int lane) {
#pragma unroll
  for (int o = 0; o < OCTETS; o++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const int row = warp_row + o * 8 + lane % 4 * 2 + c;
      if (row >= end_row) continue;
      const i64 own = place + (i64)row * out.segments;
      if (lane / 4 == 0) out.set_weight(own, soft.largest[o][c], soft.total[o][c]);
      for_each_run<VC, OCTETS>(acc, o, c, lane, [&](int element, auto run) {
        constexpr int N = sizeof(run) / 4;
#pragma unroll
        for (int i = 0; i < N; i++) run.element[i] *= row_factor<VC>();
        store_pack(out.row(own) + element, run);
      });
    }
}

// The sums of several groups, relative to the largest score of all, are added in order. `sums`
// [group][row][SUM_STRIDE] takes the place of queries and rings; `weights` [group][row].
template <int VC, int OCTETS, int ROWS, int KEY_GROUPS, int WARPS>
NINFER_DEVICE void leave_group_sums(const PartialSums& out, i64 place, const Sums<OCTETS>& acc,
                                    const Softmax<OCTETS>& soft, float* sums,
                                    float2 (&weights)[KEY_GROUPS][ROWS], int key_group, int own_row,
                                    int first_row, int count, int warp, int lane) {
  const int own = own_row + lane % 4 * 2;
  const auto largest_of = [&](int r) {
    float largest = NEVER;
#pragma unroll
    for (int k = 0; k < KEY_GROUPS; k++) largest = fmaxf(largest, weights[k][r].x);
    return largest;
  };
  if (lane / 4 == 0) {
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
      for (int c = 0; c < 2; c++)
        weights[key_group][own + o * 8 + c] = make_float2(soft.largest[o][c], soft.total[o][c]);
  }
  __syncthreads();
#pragma unroll
  for (int o = 0; o < OCTETS; o++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const int r = own + o * 8 + c;
      const float factor = exp2_approx(soft.largest[o][c] - largest_of(r)) * row_factor<VC>();
      if (r < count)
        for_each_run<VC, OCTETS>(acc, o, c, lane, [&](int element, auto run) {
          constexpr int N = sizeof(run) / 4;
#pragma unroll
          for (int i = 0; i < N; i++) run.element[i] *= factor;
          store_pack(sums + (key_group * ROWS + r) * SUM_STRIDE + element, run);
        });
    }
  __syncthreads();
  for (int r = warp; r < count; r += WARPS) {
    const i64 own_place = place + (i64)(first_row + r) * out.segments;
    if (lane == 0) {
      const float largest = largest_of(r);
      float total = 0.f;
#pragma unroll
      for (int k = 0; k < KEY_GROUPS; k++)
        total += weights[k][r].y * exp2_approx(weights[k][r].x - largest);
      out.set_weight(own_place, largest, total);
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
      *(float4*)(out.row(own_place) + element) = sum;
    }
  }
}

// Every block takes every gridDim.x-th of the things to do. Where the sequences stand was written
// before the kernel that appends their rows.
template <int KC, int VC, int OCTETS, int ROW_WARPS, int KEY_GROUPS, int STAGES>
__global__
__launch_bounds__(32 * ROW_WARPS * KEY_GROUPS, RESIDENT<KC, VC, OCTETS, ROW_WARPS * KEY_GROUPS>)
void paged_attention_kernel(
    const u16* query, i64 query_sequence, i64 query_column, i64 query_head, const u8* key_codes,
    const u8* key_scales, const u8* value_codes, const u8* value_scales, const int* tables,
    u32 table_width, const int* table_rows, const int* before, const int* new_columns,
    float* partial_rows, float* partial_weights, u32 sequences, u32 columns, u32 key_heads,
    u32 group, u32 row_blocks, u32 max_segments, float scale) {
  extern __shared__ __align__(128) u8 shared[];
  constexpr int WARP_ROWS = 8 * OCTETS, ROWS = WARP_ROWS * ROW_WARPS,
                WARPS = ROW_WARPS * KEY_GROUPS;
  using Ring = TileRing<KC, VC, ROW_WARPS, KEY_GROUPS, STAGES>;
  __shared__ float row_factors[ROWS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int key_group = warp / ROW_WARPS, row_warp = warp % ROW_WARPS;
  const int warp_row = row_warp * WARP_ROWS;
  const u32 queries = shared_address(shared);
  __shared__ u32 ends[MOST_SEQUENCES];
  const Work work{before, new_columns, sequences,    columns, key_heads,
                  group,  row_blocks,  max_segments, ends};
  const PartialSums partial{partial_rows, partial_weights, max_segments};

  if (warp == 0) Item<ROWS, false>::number_things(work, lane);
  __syncthreads();

  Item<ROWS, false> item;
  bool is_first = true;
  for (u32 number = blockIdx.x; item.find(work, number, lane); number += gridDim.x) {
    const Ring ring{
        key_codes,
        key_scales,
        value_codes,
        value_scales,
        {tables + (i64)table_rows[item.sequence] * table_width, key_heads, item.key_head},
        queries + ROWS * HEAD_DIM * 2 + key_group * STAGES * Ring::STAGE,
        item.begin + key_group * TILE,
        item.end,
        item.total,
        row_warp * 32 + lane,
        key_group};
    // The kernel before this one appends the new rows; older ones need not wait for it.
    int filled = 0;
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
      if (ring.begin + i * Ring::STEP + TILE <= item.before) {
        ring.fill(i, ring.page(i));
        filled = i + 1;
      }
    if (is_first) {
      wait_for_previous_kernels();
      let_next_kernel_start();
    }
    is_first = false;
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
      if (i >= filled) ring.fill(i, ring.page(i));
    int next_page = ring.page(STAGES - 1);
    const u32 first_head = item.key_head * group;
    place_queries<KC, ROWS, WARPS>(
        queries, row_factors,
        HeadRows{query + item.sequence * query_sequence + first_head * query_head, query_column,
                 query_head, group},
        item.first_row, item.end_row, warp, lane);
    __syncthreads();

    const OwnRows<OCTETS> own(item.first_row + warp_row, row_factors + warp_row, scale, item.before,
                              group, lane);
    Sums<OCTETS> acc = {};
    Softmax<OCTETS> soft;
    int tile = 0;
    for (int position = ring.begin; position < ring.end; position += Ring::STEP, tile++) {
      ring.advance(tile, next_page);
      next_page = ring.page(tile + STAGES);
      const u32 stage = ring.stage(tile);
      float score[OCTETS][4];
      multiply_keys<KC, OCTETS>(score, queries + warp_row * 512, stage, lane);
      own.scale_and_mask(score, position, lane);
      u32 weights[OCTETS][2];
      update_softmax<OCTETS>(soft, acc, score, weights);
      multiply_values<VC, OCTETS>(acc, weights, stage + Tile<KC>::BYTES, lane);
    }
    soft.add_lanes();

    const i64 place =
        ((i64)item.sequence * key_heads + item.key_head) * columns * group * max_segments +
        item.segment;
    asm volatile("cp.async.wait_all;" ::: "memory");
    if constexpr (KEY_GROUPS == 1) {
      leave_sums<VC, OCTETS>(partial, place, acc, soft, item.first_row + warp_row, item.end_row,
                             lane);
    } else {
      __shared__ float2 group_weights[KEY_GROUPS][ROWS];
      leave_group_sums<VC, OCTETS, ROWS, KEY_GROUPS, WARPS>(
          partial, place, acc, soft, (float*)shared, group_weights, key_group, warp_row,
          item.first_row, item.end_row - item.first_row, warp, lane);
    }
    __syncthreads();  // before shared memory is used again
  }
  if (is_first) {
    wait_for_previous_kernels();
    let_next_kernel_start();
  }
}

}  // namespace ninfer
