// Attention of few new tokens over a paged cache.
//
// The query heads that share a key head and all new tokens of a sequence form the rows of one
// matrix. The keys are cut into segments, which blocks process side by side and which merge.cu puts
// together in order; a block may have several, which are neighbours. A warp multiplies 16 keys of a
// tile with all rows, and then the weights of all keys with its part of the elements of the values.
//
// Keys and values are the left operands of the tensor cores, rows the right one: a product has 16
// keys or 16 elements and 8 rows, so that the few rows of one new token fill it.
#include "ninfer/attention_ring.cuh"
#include "ninfer/attention_rows.cuh"
#include "ninfer/attention_work.cuh"
#include "ninfer/kv_coding.cuh"
#include "ninfer/launch_order.cuh"

namespace ninfer {

// Rows 2q and 2q+1 of each octet: the keys that they see and the factors of their scores.
template <int OCTETS>
struct OwnRows {
  int last_key[OCTETS][2], unmasked;  // all rows see keys up to `unmasked`
  float factor[OCTETS][2];

  OwnRows() = default;
  NINFER_DEVICE OwnRows(int first_row, const float* factors, float scale, int before, int group,
                        int lane)
      : unmasked(before + first_row / group) {
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const int own = o * 8 + lane % 4 * 2 + c;
        last_key[o][c] = before + (first_row + own) / group;
        factor[o][c] = factors[own] * scale;
      }
  }

  // Scores of keys from `position` on in powers of two, those that a row does not see as good as none.
  NINFER_DEVICE void scale_and_mask(float (&score)[OCTETS][4], int position, int lane) const {
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
      for (int i = 0; i < 4; i++) score[o][i] *= factor[o][i % 2];
    if (position + PRODUCT_KEYS - 1 <= unmasked) return;
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (position + lane / 4 + i / 2 * 8 > last_key[o][i % 2]) score[o][i] = NEVER * 2;
  }
};

// Keys and values of new tokens as a projection gives them; without keys the rows are in the pages.
struct NewRows {
  const bf16 *key, *value;
  i64 key_sequence, key_column, key_head, value_sequence, value_column, value_head;
  const bf16* key_weight;
  const float *cosines, *sines;  // [sequence][column][pairs]
  int pairs;
  float eps;

  // Makes the new rows of a thing ready and writes them into their pages; by all warps of a block.
  template <int KC, int VC, int WARPS, class Thing>
  NINFER_DEVICE void append(const PagedRows& rows, const Work& work, const Thing& thing, int warp,
                            int lane) const {
    const u32 sequence = thing.sequence, head = thing.key_head;
    const int before = thing.before, first = max(thing.begin, before);
    for (int i = warp; i < 2 * (thing.end - first); i += WARPS) {
      const int position = first + i / 2, column = position - before;
      const int page = rows.page(sequence, position);
      const i64 row = ((i64)page * work.key_heads + head) * PAGE + position % PAGE;
      float x[8];
      if (i % 2 == 0) {
        load_row(key + sequence * key_sequence + column * key_column + head * key_head, lane, x);
        const i64 angles = ((i64)sequence * work.columns + column) * pairs;
        float scale[8];
        load_row(key_weight, lane, scale);
        normalise_and_rotate(x, scale, Rotation(cosines + angles, sines + angles, pairs, lane), eps,
                             lane);
        append_key<KC>(x, rows.key_codes, rows.key_scales, row, lane);
      } else {
        load_row(value + sequence * value_sequence + column * value_column + head * value_head,
                 lane, x);
        append_value<VC>(x, rows.value_codes, rows.value_scales, row, lane);
      }
    }
  }
};

NINFER_DEVICE void prefetch_to_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// Where the sequences stand was written before the kernels that may still run when this one starts, and
// so were the angles and the rows of older tokens. Those of new tokens are made here, by the only block
// that reads them, or by the kernel before. BLOCKS: those of a multiprocessor.
template <int KC, int VC, int OCTETS, int WARPS, int STAGES, int BLOCKS>
__global__ __launch_bounds__(32 * WARPS, BLOCKS) void paged_attention_kernel(
    const u16* query, i64 query_sequence, i64 query_column, i64 query_head, const bf16* key,
    i64 key_sequence, i64 key_column, i64 key_head, const bf16* value, i64 value_sequence,
    i64 value_column, i64 value_head, const bf16* query_weight, const bf16* key_weight,
    const float* cosines, const float* sines, int pairs, float eps, u8* key_codes, u8* key_scales,
    u8* value_codes, u8* value_scales, const int* tables, u32 table_width, const int* table_rows,
    const int* before, const int* new_columns, float* partial_rows, float* partial_weights,
    u32 sequences, u32 columns, u32 key_heads, u32 group, u32 row_blocks, u32 max_segments,
    float scale) {
  extern __shared__ __align__(128) u8 shared[];
  constexpr int ROWS = 8 * OCTETS;
  using Ring = TileRing<KC, VC, ROWS, WARPS, STAGES>;
  __shared__ float row_factors[ROWS];
  __shared__ TileWeights<OCTETS, WARPS> tile_weights;
  __shared__ u32 ends[MOST_SEQUENCES];
  __shared__ int rows_of_tables[MOST_SEQUENCES];
  __shared__ Item<ROWS, false> items[WARPS];  // of each warp, written alike by all lanes
  __shared__ TileCursor<ROWS> cursors[WARPS];
  const int lane = threadIdx.x % 32, warp = warp_index();
  const u32 queries = shared_address(shared);
  const Work work{before, new_columns, sequences,    columns, key_heads,
                  group,  row_blocks,  max_segments, ends};
  const PagedRows rows{key_codes, key_scales,     value_codes, value_scales,
                       tables,    rows_of_tables, table_width};
  const PartialSums partial{partial_rows, partial_weights, max_segments};

  if (warp == 0)
    Item<ROWS, false>::number_things(work, lane);
  else
    for (u32 i = threadIdx.x - 32; i < sequences; i += 32 * (WARPS - 1))
      rows_of_tables[i] = table_rows[i];
  __syncthreads();
  const Share share(ends[sequences - 1], blockIdx.x, gridDim.x);
  if (share.begin == share.end) {
    wait_for_previous_kernels();
    let_next_kernel_start();
    return;
  }
  Ring ring{work,      rows, cursors[warp], queries + ROWS * HEAD_DIM * 2,
            share.end, warp, lane};
  ring.start(share.begin);
  Item<ROWS, false>& item = items[warp];
  item = Item<ROWS, false>::none();

  // One loop for everything, so that the code, which is read when nothing else is to be done, is short:
  // a turn ends when the scores of a tile are known, and the next one begins with what they weigh.
  Sums<OCTETS, WARPS> acc;
  Softmax<OCTETS> soft;
  OwnRows<OCTETS> own;
  float score[OCTETS][4];
  bool is_started = false;
  int tile = -1, position = 0, wanted = STAGES - 1;  // tiles on their way
  for (u32 number = share.begin;;) {
    while (ring.next.filled < wanted && (is_started || ring.has_old_tile())) {
      if (key && is_started && ring.has_first_new_row()) {
        const NewRows added{key,        value,          key_sequence, key_column,
                            key_head,   value_sequence, value_column, value_head,
                            key_weight, cosines,        sines,        pairs,
                            eps};
        added.append<KC, VC, WARPS>(rows, work, ring.next.item, warp, lane);
        __syncthreads();
      }
      ring.fill();
    }
    if (tile >= 0) {
      weigh_keys<OCTETS, WARPS>(soft, acc, tile_weights, score, warp, lane);
      __syncthreads();  // all weights are there
#pragma unroll
      for (int i = 0; i < WARPS; i++) {
        uint2 weights[OCTETS];
#pragma unroll
        for (int o = 0; o < OCTETS; o++) weights[o] = tile_weights.fragment[i][o][lane];
        multiply_values<VC, OCTETS, WARPS>(acc, weights, ring.values(tile, i), warp, lane);
      }
      position += Ring::KEYS;
    }
    if (position >= item.end) {  // to the next segment
      if (tile >= 0) {
        const i64 rows_before = ((i64)item.sequence * key_heads + item.key_head) * columns * group;
        leave_sums<VC, OCTETS, WARPS>(
            partial, (rows_before + item.first_row) * max_segments + item.segment, acc, soft,
            tile_weights, item.end_row - item.first_row, warp, lane);
        if (number == share.end) break;
      }
      Item<ROWS, false> next = item;
      __syncwarp();
      next.advance(work, number++, lane);
      item = next;
      position = next.begin;
      soft = {};
#pragma unroll
      for (int m = 0; m < HEAD_DIM / 16 / WARPS; m++)
#pragma unroll
        for (int o = 0; o < OCTETS; o++)
#pragma unroll
          for (int i = 0; i < 4; i++) acc[m][o][i] = 0.f;
      if (next.segment == 0 || !is_started) {  // other rows
        const i64 angles = (i64)next.sequence * columns * pairs;
        if (!is_started) {
          if (key && warp == 0) {
            if (lane < 4) prefetch_to_l2(query_weight + lane * 64);
            if (lane == 4) prefetch_to_l2(cosines + angles);
            if (lane == 5) prefetch_to_l2(sines + angles);
          }
          wait_for_previous_kernels();
          let_next_kernel_start();
        }
        place_queries<KC, ROWS, WARPS>(
            queries, row_factors,
            HeadRows{query + next.sequence * query_sequence + next.key_head * group * query_head,
                     query_column, query_head, group},
            QueryNorm{query_weight, cosines + angles, sines + angles, pairs, eps}, next.first_row,
            next.end_row, warp, lane);
        __syncthreads();
        own = OwnRows<OCTETS>(next.first_row, row_factors, scale, next.before, group, lane);
        if (!is_started) {
          is_started = true;
          wanted = STAGES;
          continue;
        }
      }
    }
    tile++;
    ring.wait(tile);
    multiply_keys<KC, OCTETS>(score, queries, ring.keys(tile, warp), lane);
    own.scale_and_mask(score, position + warp * PRODUCT_KEYS, lane);
    tell_largest<OCTETS, WARPS>(tile_weights, score, warp, lane);
    __syncthreads();  // all have this tile, and nobody reads the one before
    wanted = tile + STAGES;
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace ninfer
