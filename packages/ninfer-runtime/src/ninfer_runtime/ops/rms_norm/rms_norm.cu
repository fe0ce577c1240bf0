// One row of D values for THREADS threads, kept in registers between its two uses.
#include "ninfer/elements.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

// A block has one row for every THREADS of its threads, and a thread holds PER packs of V columns.
template <int V, int PER, int THREADS, class X, class W, class O>
__global__ void rms_norm_row_kernel(const X* x, i64 x_outer, i64 x_inner, const W* weight, O* out,
                                    i64 out_outer, i64 out_inner, u32 rows, u32 inner, u32 columns,
                                    float eps, float offset) {
  __shared__ float partial[THREADS / 32];
  const u32 thread = threadIdx.x % THREADS;
  const u32 row = blockIdx.x * (blockDim.x / THREADS) + threadIdx.x / THREADS;
  Pack<W, V> scale[PER];
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const u32 column = (i * THREADS + thread) * V;
    if (column < columns) scale[i] = load_pack<V>(weight + column);
  }
  wait_for_previous_kernels();
  let_next_kernel_start();
  if (row >= rows) return;
  const X* source = Rows<const X>{x, x_outer, x_inner}.row(row, inner);
  Pack<X, V> held[PER];
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const u32 column = (i * THREADS + thread) * V;
    if (column < columns) {
      held[i] = load_pack<V>(source + column);
#pragma unroll
      for (int j = 0; j < V; j++) sum = fmaf(held[i][j], held[i][j], sum);
    }
  }
  sum = block_sum<THREADS>(sum, partial, thread);
  const float inverse = rsqrtf(sum / columns + eps);
  O* target = Rows<O>{out, out_outer, out_inner}.row(row, inner);
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const u32 column = (i * THREADS + thread) * V;
    if (column < columns) {
      Pack<O, V> result;
#pragma unroll
      for (int j = 0; j < V; j++) result.set(j, held[i][j] * inverse * (scale[i][j] + offset));
      store_pack<V>(target + column, result);
    }
  }
}

}  // namespace ninfer
