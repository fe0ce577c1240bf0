// Rows of a table in weight records by token id.
#include "ninfer/elements.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/weight_record.cuh"

namespace ninfer {

constexpr int THREADS = 128;

// As `load_record`, from global memory.
template <int F>
NINFER_DEVICE LaneRecord<F> load_record_of_table(const u8* record, int lane) {
  using Shape = RecordShape<F>;
  LaneRecord<F> r;
#pragma unroll
  for (int i = 0; i < Shape::WORDS16; i++)
    r.codes[i] = *(const uint4*)(record + i * 512 + lane * 16);
  r.high = make_uint2(0, 0);
  r.scales = make_uint2(0, 0);
  if constexpr (F == Q5) r.high.x = *(const u32*)(record + 512 + lane * 4);
  if constexpr (F == Q6) r.high = *(const uint2*)(record + 512 + lane * 8);
  if constexpr (F <= Q6) r.scales.x = *(const u32*)(record + Shape::SCALES + (lane >> 2) * 4);
  if constexpr (F == Q8 || F == NVFP4)
    r.scales = *(const uint2*)(record + Shape::SCALES + (lane >> 2) * 8);
  return r;
}

// The value of one half of a register of an A fragment, without the group's scale.
template <int F>
NINFER_DEVICE float half_value(u32 pair, int upper) {
  const u16 word = (u16)(upper ? pair >> 16 : pair);
  return F == BF16 ? bf16_to_float(word) : f16_to_float(word);
}

// `parts` blocks a token. A row lies in a tile of 16 with others: in each record, four lanes hold it,
// and a thread decodes what one of them holds. `columns` is even.
template <int F, class O>
__global__ __launch_bounds__(THREADS) void embedding_kernel(const int* token_ids,
                                                            const u8* __restrict__ table,
                                                            const float* __restrict__ row_scale,
                                                            O* out, u32 columns, u32 records,
                                                            u32 parts) {
  constexpr int GROUPS = RecordShape<F>::GROUPS;
  let_next_kernel_start();
  const u32 t = blockIdx.x / parts, unit = blockIdx.x % parts * THREADS + threadIdx.x;
  const u32 record = unit >> 2, q = unit & 3;
  wait_for_previous_kernels();
  if (record >= records) return;
  const u32 token = token_ids[t], row = token & 15;
  const int upper = row >> 3, g = row & 7;
  const u8* tile = table + (u64)(token >> 4) * records * RecordShape<F>::BYTES;
  O* target = out + (u64)t * columns;
  const float of_row = row_scale ? row_scale[token] : 1.f;
  const LaneRecord<F> r =
      load_record_of_table<F>(tile + (u64)record * RecordShape<F>::BYTES, 4 * g + q);
#pragma unroll
  for (int s = 0; s < 4; s++) {
    u32 a[4];
    decode_step<F>(r, s, a);
    float scale = 1.f;
    if constexpr (GROUPS > 0) {
      const u32 pair = scale_pair<F>(r, s * GROUPS / 4);
      scale = f16_to_float((u16)(upper ? pair >> 16 : pair));
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {  // columns 2q and 2q + 8 of the step
      const u32 pair = upper ? a[2 * half + 1] : a[2 * half];
      const u32 column = record * 64 + 16 * s + 2 * q + 8 * half;
      if (column >= columns) continue;
      Pack<O, 2> values;
#pragma unroll
      for (int i = 0; i < 2; i++)
        values.set(i, half_value<F>(pair, i) * scale * record_factor<F>() * of_row);
      store_pack<2>(target + column, values);
    }
  }
}

}  // namespace ninfer
