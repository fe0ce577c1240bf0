// The last step of attention whose keys were cut into segments.
#include "ninfer/activation_rows.cuh"
#include "ninfer/attention_work.cuh"
#include "ninfer/hadamard.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/reduce.cuh"
#include "ninfer/softmax.cuh"

namespace ninfer {

constexpr int PARTS = 8;  // of the segments; the threads of one sum its segments in order
constexpr int AHEAD = 6;  // segments of a part that are read before their weights are known
constexpr int MOST_SEGMENTS = 256;

// Elements of a row that a block makes: where the values were transformed all of them.
template <bool TRANSFORMED>
constexpr int ELEMENTS = TRANSFORMED ? 256 : 128;
template <bool TRANSFORMED>
constexpr int THREADS = ELEMENTS<TRANSFORMED> / 4 * PARTS;

NINFER_DEVICE void add_scaled(float4& sum, float factor, const float4& v) {
  sum.x = fmaf(factor, v.x, sum.x);
  sum.y = fmaf(factor, v.y, sum.y);
  sum.z = fmaf(factor, v.z, sum.z);
  sum.w = fmaf(factor, v.w, sum.w);
}

// Merges the segments of rows in order, undoes the transform of the values, applies the gate and packs
// the result for a product. Blocks: [sequence][key head][row][piece]. Where the sequences stand was
// written before the kernels that may still run when this one starts.
template <bool TRANSFORMED>
__global__ __launch_bounds__(THREADS<TRANSFORMED>, 1024 / THREADS<TRANSFORMED>) void paged_attention_merge_kernel(
    const float* partial_rows, const float* partial_weights, const u16* gate, i64 gate_sequence,
    i64 gate_column, i64 gate_head, bf16* out, u32* half, float* half_factor, u32* words,
    float* words_factor, int block, const int* before, const int* new_columns, u32 columns,
    u32 key_heads, u32 group, u32 max_segments) {
  constexpr int ELEMENTS = ninfer::ELEMENTS<TRANSFORMED>, PIECES = 256 / ELEMENTS,
                QUADS = ELEMENTS / 4, WARPS = THREADS<TRANSFORMED> / 32;
  __shared__ float factors[WARPS][MOST_SEGMENTS], values[ELEMENTS];
  __shared__ float4 sums[PARTS][QUADS];
  const int thread = threadIdx.x, part = thread / QUADS, quad = thread % QUADS;
  const int lane = thread % 32, warp = thread / 32;
  const u32 rows = columns * group, first_element = blockIdx.x % PIECES * ELEMENTS;
  const u32 row = blockIdx.x / PIECES % rows, index = blockIdx.x / PIECES / rows;
  const u32 sequence = index / key_heads, column = row / group;
  const u32 head = index % key_heads * group + row % group;
  const Span span(before[sequence], new_columns[sequence], max_segments);
  const u32 token = sequence * columns + column, first_place = head * 256 + first_element;
  const ActivationRows products = {half, half_factor, words, words_factor, block};
  // Four lanes of a warp store its 32 elements, by eight.
  const auto store = [&](const Pack<bf16, 8>& pack) {
    const u32 place = first_place + warp * 32 + lane * 8;
    store_pack<8>(out + (i64)token * key_heads * group * 256 + place, pack);
    if (half) products.store_half(token, place, pack, 1 / FIXED_FACTOR);
  };
  let_next_kernel_start();
  wait_for_previous_kernels();
  if (first_place == 0 && thread == 0) products.store_factors(token, FIXED_FACTOR);
  if ((int)column >= span.columns) {
    if (thread < ELEMENTS && lane < 4) store(Pack<bf16, 8>{});
    return;
  }
  const i64 place = ((i64)index * rows + row) * max_segments;
  const float* own_rows = partial_rows + place * 256 + first_element + quad * 4;
  // Every warp works out the factors of all segments, so that none waits for another.
  float2 weight[MOST_SEGMENTS / 32];
#pragma unroll
  for (int i = 0; i < MOST_SEGMENTS / 32; i++)
    weight[i] = i * 32 + lane < span.segments
                    ? *(const float2*)(partial_weights + 2 * (place + i * 32 + lane))
                    : make_float2(NEVER, 0.f);
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
  float largest = NEVER, total = 0.f;
#pragma unroll
  for (int i = 0; i < MOST_SEGMENTS / 32; i++) largest = fmaxf(largest, weight[i].x);
  largest = warp_max(largest);
#pragma unroll
  for (int i = 0; i < MOST_SEGMENTS / 32; i++) {
    const float factor = weight[i].y > 0.f ? exp2_approx(weight[i].x - largest) : 0.f;
    factors[warp][i * 32 + lane] = factor;
    total = fmaf(weight[i].y, factor, total);
  }
  total = warp_sum(total);
  __syncwarp();

  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
  for (int k = 0; k < AHEAD; k++)
    if (part + k * PARTS < span.segments)
      add_scaled(sum, factors[warp][part + k * PARTS], first[k]);
#pragma unroll 6
  for (int i = part + AHEAD * PARTS; i < span.segments; i += PARTS)
    add_scaled(sum, factors[warp][i], *(const float4*)(own_rows + i * 256));
  sums[part][quad] = sum;
  __syncthreads();
  if (!TRANSFORMED && thread >= ELEMENTS) return;  // a transform has barriers for all
  if (thread < ELEMENTS) {
    float value = 0.f;
#pragma unroll
    for (int i = 0; i < PARTS; i++) value += ((const float*)sums[i])[thread];
    values[thread] = value / total;
  }
  if constexpr (TRANSFORMED) {
    __syncthreads();
    if (warp == 0) {
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; i++) x[i] = values[lane * 8 + i];
      hadamard_256(x, lane);
#pragma unroll
      for (int i = 0; i < 8; i++) values[lane * 8 + i] = x[i];
    }
    __syncthreads();
    if (thread >= ELEMENTS) return;
  }
  values[thread] *= sigmoid(bf16_to_float(own_gate));
  __syncwarp();
  if (lane >= 4) return;
  Pack<bf16, 8> pack;
#pragma unroll
  for (int i = 0; i < 8; i++) pack.set(i, values[warp * 32 + lane * 8 + i]);
  store(pack);
}

}  // namespace ninfer
