// One warp for each head of each new token: norm, rotation, codec.
#include "ninfer/attention_heads.cuh"
#include "ninfer/kv_coding.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/paged_spans.cuh"

namespace ninfer {

// Warps: [lane][column][query heads, key heads, value heads]. Strides: of lanes, columns and heads.
template <int KC, int VC, class X, class W, class O>
__global__ __launch_bounds__(128, 4) void attention_inputs_kernel(
    const X* query, i64 query_lane, i64 query_column, i64 query_head, const X* key, i64 key_lane,
    i64 key_column, i64 key_head, const X* value, i64 value_lane, i64 value_column, i64 value_head,
    const W* query_weight, const W* key_weight, const float* cosines, const float* sines,
    const int* tables, const int* table_rows, const int* before, const int* new_columns, O* out,
    u8* key_codes, u8* key_scales, u8* value_codes, u8* value_scales, u32 lanes, u32 columns,
    u32 heads, u32 key_heads, u32 table_width, int pairs, float eps) {
  const int lane = threadIdx.x % 32;
  const u32 all_heads = heads + 2 * key_heads;
  const u32 index = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const u32 head = index % all_heads, token = index / all_heads;
  const u32 column = token % columns, sequence = min(token / columns, lanes - 1);
  // Weights are constant, and where the sequences stand was known before the kernel that computes
  // the heads: neither need wait for it.
  float scale[8] = {};
  if (head < heads + key_heads) load_row(head < heads ? query_weight : key_weight, lane, scale);
  const bool exists = (int)column < new_columns[sequence];
  const int position = before[sequence] + column;
  const u32 own = (head - heads) % key_heads;
  i64 row = 0;
  if (exists && head >= heads) {
    const int page = tables[(i64)table_rows[sequence] * table_width + position / PAGE];
    row = ((i64)page * key_heads + own) * PAGE + position % PAGE;
  }
  wait_for_previous_kernels();
  let_next_kernel_start();
  if (token >= lanes * columns) return;
  const auto rotation = [&] {
    return Rotation(cosines + (i64)token * pairs, sines + (i64)token * pairs, pairs, lane);
  };
  float x[8] = {};
  if (head < heads) {
    if (exists) {
      load_row(query + sequence * query_lane + column * query_column + head * query_head, lane, x);
      normalise_and_rotate(x, scale, rotation(), eps, lane);
    }
    Pack<O, 8> pack;
#pragma unroll
    for (int i = 0; i < 8; i++) pack.set(i, x[i]);
    store_pack<8>(out + ((i64)token * heads + head) * HEAD_DIM + lane * 8, pack);
    return;
  }
  if (!exists) return;
  if (head < heads + key_heads) {
    load_row(key + sequence * key_lane + column * key_column + own * key_head, lane, x);
    normalise_and_rotate(x, scale, rotation(), eps, lane);
    append_key<KC>(x, key_codes, key_scales, row, lane);
  } else {
    load_row(value + sequence * value_lane + column * value_column + own * value_head, lane, x);
    append_value<VC>(x, value_codes, value_scales, row, lane);
  }
}

}  // namespace ninfer
