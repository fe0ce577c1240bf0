// The last step of attention whose keys were cut into segments.
#include "ninfer/attention_work.cuh"
#include "ninfer/hadamard.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/reduce.cuh"
#include "ninfer/softmax.cuh"

namespace ninfer {

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int AHEAD = 8;  // segments of a part that are read before their weights are known

NINFER_DEVICE void add_scaled(float4& sum, float factor, const float4& v) {
  sum.x = fmaf(factor, v.x, sum.x);
  sum.y = fmaf(factor, v.y, sum.y);
  sum.z = fmaf(factor, v.z, sum.z);
  sum.w = fmaf(factor, v.w, sum.w);
}

// The largest of all threads' values in all of them; `partial` as for `block_sum`.
NINFER_DEVICE float largest_of_block(float x, float* partial, int thread) {
  x = warp_max(x);
  if (thread % 32 == 0) partial[thread / 32] = x;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < WARPS; i++) x = fmaxf(x, partial[i]);
  return x;
}

// Merges the segments of rows in order, undoes the transform of the values and applies the gate. A
// block takes a piece of a row: a quarter, or where the values were transformed the whole. Blocks:
// [sequence] [key head][row][piece]. Where the sequences stand was written before the kernels that
// this one waits for.
template <bool TRANSFORMED>
__global__ __launch_bounds__(THREADS, 2) void paged_attention_merge_kernel(
    const float* partial_rows, const float* partial_weights, const u16* gate, i64 gate_sequence,
    i64 gate_column, i64 gate_head, u16* out, const int* before, const int* new_columns,
    u32 columns, u32 key_heads, u32 group, u32 max_segments) {
  constexpr int ELEMENTS = TRANSFORMED ? 256 : 64, PIECES = 256 / ELEMENTS, QUADS = ELEMENTS / 4;
  constexpr int PARTS = THREADS / QUADS;  // of the segments, each summed by QUADS threads
  __shared__ float factor[256], maxima[WARPS], totals[WARPS], values[ELEMENTS];
  __shared__ float4 sums[PARTS][QUADS];
  const int thread = threadIdx.x, part = thread / QUADS, quad = thread % QUADS;
  const u32 rows = columns * group, first_element = blockIdx.x % PIECES * ELEMENTS;
  const u32 row = blockIdx.x / PIECES % rows, index = blockIdx.x / PIECES / rows;
  const u32 sequence = index / key_heads, column = row / group;
  const u32 head = index % key_heads * group + row % group;
  const Span span(before[sequence], new_columns[sequence], max_segments);
  const i64 token = (i64)sequence * columns + column;
  u16* target = out + (token * key_heads * group + head) * 256 + first_element;
  wait_for_previous_kernels();
  let_next_kernel_start();
  if ((int)column >= span.columns) {
    if (thread < ELEMENTS) target[thread] = 0;
    return;
  }
  const i64 place = ((i64)index * rows + row) * max_segments;
  const float* own_rows = partial_rows + place * 256 + first_element + quad * 4;
  float2 soft = make_float2(NEVER, 0.f);
  if (thread < span.segments) soft = *(const float2*)(partial_weights + 2 * (place + thread));
  float4 first[AHEAD];
#pragma unroll
  for (int k = 0; k < AHEAD; k++) {
    const int i = part + k * PARTS;
    first[k] =
        i < span.segments ? *(const float4*)(own_rows + i * 256) : make_float4(0.f, 0.f, 0.f, 0.f);
  }
  u16 own_gate = 0;
  if (thread < ELEMENTS)
    own_gate = gate[sequence * gate_sequence + column * gate_column + head * gate_head +
                    first_element + thread];
  const float largest = largest_of_block(soft.x, maxima, thread);
  factor[thread] = soft.y > 0.f ? exp2_approx(soft.x - largest) : 0.f;
  const float total = block_sum<THREADS>(soft.y * factor[thread], totals, thread);

  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
  for (int k = 0; k < AHEAD; k++)
    if (part + k * PARTS < span.segments) add_scaled(sum, factor[part + k * PARTS], first[k]);
#pragma unroll 8
  for (int i = part + AHEAD * PARTS; i < span.segments; i += PARTS)
    add_scaled(sum, factor[i], *(const float4*)(own_rows + i * 256));
  sums[part][quad] = sum;
  __syncthreads();
  if (thread >= ELEMENTS) return;  // of 256 elements, nobody
  float value = 0.f;
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
  target[thread] = float_to_bf16(value * sigmoid(bf16_to_float(own_gate)));
}

}  // namespace ninfer
