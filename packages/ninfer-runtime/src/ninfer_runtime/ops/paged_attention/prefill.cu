// Attention of many new tokens over a paged cache, for every architecture.
//
// The query heads that share a key head and all new tokens of a sequence form the rows of one
// matrix; a block takes 128 of them, a warp 16, and goes through the keys they see in tiles. Coded
// keys and values are expanded once for the block. Values are read while scores are computed, the
// next keys while values are multiplied.
#include "ninfer/launch_order.cuh"
#include "ninfer/matrices.cuh"
#include "ninfer/mma.cuh"
#include "ninfer/prefill_rows.cuh"

namespace ninfer {

constexpr int WARPS = 8, ROWS = 16 * WARPS;

// Addresses of the two chunks 2k, 2k+1 of a row differ from those of chunks 0, 1 in bits that the
// spread over the banks leaves apart.
template <int ROWS_OF_TILE>
NINFER_DEVICE u32 pair_of_chunks(u32 first, int k) {
  return (first ^ (k % 4 * 32)) + k / 4 * (ROWS_OF_TILE * 128);
}

// Scores of KEYS keys for 16 rows; `query` and `key` are this lane's addresses in their first
// chunks.
template <bool BF16, int KEYS>
NINFER_DEVICE void multiply_keys(float (&score)[KEYS / 8][4], u32 query, u32 key) {
  query = opaque(query);
  key = opaque(key);
#pragma unroll
  for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) score[n][i] = 0.f;
#pragma unroll
  for (int k = 0; k < HEAD_DIM / 16; k++) {
    u32 a[4];
    load_matrices(a, pair_of_chunks<ROWS>(query, k));
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) {
      u32 b[4];
      load_matrices(b, pair_of_chunks<KEYS>(key, k) + n * 2048);
      mma_16x8x16<BF16>(score[2 * n], a, b[0], b[1]);
      mma_16x8x16<BF16>(score[2 * n + 1], a, b[2], b[3]);
    }
  }
}

template <int KEYS>
NINFER_DEVICE void multiply_values(RowSums& acc, const float (&weight)[KEYS / 8][4], u32 value) {
  value = opaque(value);
#pragma unroll
  for (int k = 0; k < KEYS / 16; k++) {
    u32 a[4];
    weight_fragment(weight, k, a);
#pragma unroll
    for (int n = 0; n < HEAD_DIM / 16; n++) {
      u32 b[4];
      load_matrices_transposed(b, pair_of_chunks<KEYS>(value, n) + k * 2048);
      mma_16x8x16<false>(acc[2 * n], a, b[0], b[1]);
      mma_16x8x16<false>(acc[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// Blocks: [sequence][key head][row block, most keys first][segment]. Results as those of
// `paged_attention_kernel`.
template <int KC, int VC, int KEYS, bool FINAL>
__global__ __launch_bounds__(32 * WARPS, 1) void paged_prefill_kernel(
    const u16* query, i64 query_sequence, i64 query_column, i64 query_head, const u8* key_codes,
    const u8* key_scales, const u8* value_codes, const u8* value_scales, const int* tables,
    u32 table_width, const int* table_rows, const int* before, const int* new_columns,
    const u16* gate, i64 gate_sequence, i64 gate_column, i64 gate_head, u16* final_out,
    float* partial_rows, float* partial_weights, u32 sequences, u32 columns, u32 key_heads,
    u32 group, u32 row_blocks, u32 max_segments, float scale) {
  extern __shared__ __align__(1024) u8 shared[];
  const int lane = threadIdx.x % 32, warp = warp_index();
  const BlockPlace place(blockIdx.x, key_heads, row_blocks, max_segments);
  const u32 queries = shared_address(shared), keys = queries + ROWS * ROW_BYTES,
            values = keys + KEYS * ROW_BYTES;
  wait_for_previous_kernels();
  let_next_kernel_start();
  const Span span(before[place.sequence], new_columns[place.sequence], max_segments);
  const int first_row = place.row_block * ROWS;
  const int end_row = min(first_row + ROWS, span.columns * (int)group);
  const OutputRows out{final_out + place.first_head(columns, key_heads, group) * HEAD_DIM,
                       key_heads * group, group};
  if constexpr (FINAL)
    clear_rows(out, max(first_row, end_row), min(first_row + ROWS, (int)(columns * group)), warp,
               WARPS, lane);
  if (place.segment >= span.segments || end_row <= first_row) return;
  const int begin = place.segment * span.segment_keys;
  const int visible = span.before + (end_row - 1) / (int)group + 1;  // by the last row
  const int end = min(begin + span.segment_keys, visible);

  const Pages pages{tables + (i64)table_rows[place.sequence] * table_width, key_heads,
                    place.key_head};
  TileLoader<KC, KEYS, WARPS> key_loader;
  TileLoader<VC, KEYS, WARPS> value_loader;
  const auto start_keys = [&](int position) {
    if (position < end)
      key_loader.start(keys, key_codes, key_scales, pages.row(position), span.total - position,
                       warp, lane);
  };
  start_keys(begin);
  const int warp_row = first_row + warp * 16;
  const u32 first_head = place.key_head * group;
  RowSoftmax soft;
  place_query_rows<KC, ROWS>(
      soft, queries, warp * 16,
      HeadRows{query + place.sequence * query_sequence + first_head * query_head, query_column,
               query_head, group},
      warp_row, end_row, scale, lane);
  RowSums acc = {};
  const int own_row = warp_row + lane / 4;
  const int last_key[2] = {span.before + own_row / (int)group,
                           span.before + (own_row + 8) / (int)group};
  const int unmasked = span.before + warp_row / (int)group;  // all rows see it

  const u32 own_query = queries + chunk_offset<ROWS>(warp * 16 + lane % 16, lane / 16);
  const u32 own_key = keys + chunk_offset<KEYS>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const u32 own_value = values + chunk_offset<KEYS>(lane % 16, lane / 16);

  for (int position = begin; position < end; position += KEYS) {
    key_loader.finish(keys, warp, lane);
    __syncthreads();
    value_loader.start(values, value_codes, value_scales, pages.row(position),
                       span.total - position, warp, lane);
    float score[KEYS / 8][4];
    multiply_keys<KC == ROWS_BF16, KEYS>(score, own_query, own_key);
    value_loader.finish(values, warp, lane);
    __syncthreads();
    start_keys(position + KEYS);
    if (position + KEYS - 1 > unmasked) mask_scores(score, position, last_key, lane);
    float correction[2];
    if (weigh_scores(soft, score, correction)) shrink_sums(acc, correction);
    multiply_values<KEYS>(acc, score, own_value);
  }

  if constexpr (FINAL)
    write_results<VC, ROWS>(acc, soft,
                            HeadRows{gate + place.sequence * gate_sequence + first_head * gate_head,
                                     gate_column, gate_head, group},
                            out, queries, warp * 16, warp_row, end_row, lane);
  else
    write_partial<VC>(acc, soft, PartialSums{partial_rows, partial_weights, max_segments},
                      place.partial(key_heads, columns * group, max_segments), warp_row, end_row,
                      lane);
}

}  // namespace ninfer
