// Attention of many new tokens over a paged cache on sm_90a; the result is that of prefill.cu.
//
// One or two warpgroups multiply 64 rows each, two others fill the pages of keys and of values that
// they read. While the tensor cores add the values of one page, a warpgroup has its scores of the
// next and makes weights of them. Pages of f16 and bf16 rows are copied into place; those of codes
// are copied as they are, in bulk, and expanded from there. A block may have several things to do,
// one after the other; then the pages of the next are filled while the last are still multiplied.
#include "ninfer/attention_work.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/page_rings.cuh"
#include "ninfer/prefill_rows.cuh"
#include "ninfer/wgmma_attention.cuh"

#if NINFER_HAS_WGMMA

extern __shared__ __align__(1024) u8 dynamic_shared[];

namespace ninfer {

// Operands of a product are not to be overwritten before it is over.
NINFER_DEVICE void keep_weights(const u32 (&weights)[PAGE / 16][4]) {
#pragma unroll
  for (int k = 0; k < PAGE / 16; k++)
#pragma unroll
    for (int i = 0; i < 4; i++) asm volatile("" ::"r"(weights[k][i]) : "memory");
}

// Goes through `count` pages with 64 rows; in the rings they come after `done` others.
template <bool BF16>
NINFER_DEVICE void attend_pages(RowSums& acc, RowSoftmax& soft, u32 queries, const TileRing& keys,
                                const TileRing& values, int done, int begin, int count,
                                const int (&last_key)[2], int unmasked, int lane) {
  float score[PAGE / 8][4], correction[2];
  u32 weights[PAGE / 16][4];
  const auto finish_scores = [&](int j) {
    keys.release(done + j, lane);
    wgmma_pin<32>(score[0]);
    const int position = begin + j * PAGE;
    if (position + PAGE - 1 > unmasked) mask_scores(score, position, last_key, lane);
    return weigh_scores(soft, score, correction);
  };
  const auto start_adding = [&](int j) {
    values.wait_for_page(done + j);
    start_values(acc, weights, values.tile(done + j));
    wgmma_commit();
  };
  const auto take_weights = [&] {
#pragma unroll
    for (int k = 0; k < PAGE / 16; k++) weight_fragment(score, k, weights[k]);
  };

  keys.wait_for_page(done);
  wgmma_fence();
  start_scores<BF16>(score, queries, keys.tile(done));
  wgmma_commit();
  wgmma_wait<0>();
  finish_scores(0);
  for (int j = 1; j < count; j++) {
    take_weights();
    keys.wait_for_page(done + j);
    wgmma_fence();
    start_scores<BF16>(score, queries, keys.tile(done + j));
    wgmma_commit();
    start_adding(j - 1);
    wgmma_wait<1>();
    const bool shrinks = finish_scores(j);
    wgmma_wait<0>();
    keep_weights(weights);
    values.release(done + j - 1, lane);
    wgmma_pin<128>(acc[0]);
    if (shrinks) shrink_sums(acc, correction);
  }
  take_weights();
  wgmma_fence();
  start_adding(count - 1);
  wgmma_wait<0>();
  keep_weights(weights);
  values.release(done + count - 1, lane);
  wgmma_pin<128>(acc[0]);
}

// Every block takes every gridDim.x-th of the things to do. Where the sequences stand was written
// before the kernel that appends their rows. MULTIPLIERS + 2 warpgroups.
template <int KC, int VC, int MULTIPLIERS, bool FINAL>
__global__ __launch_bounds__(128 * (MULTIPLIERS + 2), 1) void paged_prefill_wgmma_kernel(
    const u16* query, i64 query_sequence, i64 query_column, i64 query_head, const u8* key_codes,
    const u8* key_scales, const u8* value_codes, const u8* value_scales, const int* tables,
    u32 table_width, const int* table_rows, const int* before, const int* new_columns,
    const u16* gate, i64 gate_sequence, i64 gate_column, i64 gate_head, u16* final_out,
    float* partial_rows, float* partial_weights, u32 sequences, u32 columns, u32 key_heads,
    u32 group, u32 row_blocks, u32 max_segments, float scale) {
  constexpr int ROWS = TILE_ROWS * MULTIPLIERS, CODED_SLOTS = 3 - MULTIPLIERS;
  const int lane = threadIdx.x % 32, warp = warp_index(), warpgroup = warp / 4;
  const u32 queries = shared_address(dynamic_shared);
  const u32 barriers = queries + ROWS * ROW_BYTES + 2 * SLOTS * TILE_BYTES;
  const TileRing keys{queries + ROWS * ROW_BYTES, barriers};
  const TileRing values{keys.tiles + SLOTS * TILE_BYTES, barriers + SLOTS * 16};
  const CodedPages<KC, CODED_SLOTS> coded_keys{barriers + BARRIER_BYTES + MOST_SEQUENCES * 4,
                                               barriers + SLOTS * 32};
  const CodedPages<VC, CODED_SLOTS> coded_values{
      coded_keys.place + CODED_SLOTS * CodedPages<KC, CODED_SLOTS>::BYTES,
      coded_keys.barriers + CODED_SLOTS * 8};
  const Work work{before,     new_columns,  sequences,
                  columns,    key_heads,    group,
                  row_blocks, max_segments, (u32*)shared_pointer(barriers + BARRIER_BYTES)};
  if (warp == 0) Item<ROWS, FINAL>::number_things(work, lane);
  if (threadIdx.x == 0) {
    keys.init(MULTIPLIERS);
    values.init(MULTIPLIERS);
    coded_keys.init();
    coded_values.init();
    barrier_init_fence();
  }
  __syncthreads();

  if (warpgroup >= MULTIPLIERS) {
    give_up_registers<MULTIPLIERS == 1 ? 96 : 48>();
    const bool fills_keys = warpgroup == MULTIPLIERS;
    PageCursor<ROWS, FINAL> from{work,
                                 fills_keys ? key_codes : value_codes,
                                 fills_keys ? key_scales : value_scales,
                                 tables,
                                 table_rows,
                                 table_width};
    if (fills_keys)
      fill_pages(from, keys, coded_keys, warpgroup, warp % 4, lane);
    else
      fill_pages(from, values, coded_values, warpgroup, warp % 4, lane);
    wait_for_previous_kernels();
    return;
  }
  take_registers<MULTIPLIERS == 1 ? 240 : 208>();
  wait_for_previous_kernels();
  let_next_kernel_start();
  const int tile_row = warp % 4 * 16;
  const u32 own_queries = queries + warpgroup * TILE_ROWS * ROW_BYTES;
  Item<ROWS, FINAL> item;
  int done = 0;
  for (u32 number = blockIdx.x; item.find(work, number, lane); number += gridDim.x) {
    const u32 first_head = item.key_head * group;
    const int warp_row = item.first_row + warp * 16, end_row = item.end_row;
    const OutputRows out{
        final_out + ((i64)item.sequence * columns * key_heads * group + first_head) * HEAD_DIM,
        key_heads * group, group};
    if constexpr (FINAL)
      clear_rows(out, max(item.first_row, end_row),
                 min(item.first_row + ROWS, (int)(columns * group)), warp, 4 * MULTIPLIERS, lane);
    if (end_row <= item.first_row) continue;
    RowSoftmax soft;
    place_query_rows<KC, TILE_ROWS>(
        soft, own_queries, tile_row,
        HeadRows{query + item.sequence * query_sequence + first_head * query_head, query_column,
                 query_head, group},
        warp_row, end_row, scale, lane);
    fence_for_tensor_cores();
    synchronize_warpgroup(warpgroup);
    RowSums acc = {};
    const int own_row = warp_row + lane / 4;
    const int last_key[2] = {item.before + own_row / (int)group,
                             item.before + (own_row + 8) / (int)group};
    const int unmasked = item.before + warp_row / (int)group;  // all rows see it
    if (item.count > 0)
      attend_pages<KC == ROWS_BF16>(acc, soft, own_queries, keys, values, done, item.begin,
                                    item.count, last_key, unmasked, lane);
    done += item.count;
    synchronize_warpgroup(warpgroup);  // nobody multiplies the queries any more
    if constexpr (FINAL)
      write_results<VC, TILE_ROWS>(
          acc, soft,
          HeadRows{gate + item.sequence * gate_sequence + first_head * gate_head, gate_column,
                   gate_head, group},
          out, own_queries, tile_row, warp_row, end_row, lane);
    else
      write_partial<VC>(
          acc, soft, PartialSums{partial_rows, partial_weights, max_segments},
          ((i64)item.sequence * key_heads + item.key_head) * columns * group * max_segments +
              item.segment,
          warp_row, end_row, lane);
  }
}

}  // namespace ninfer

#endif
