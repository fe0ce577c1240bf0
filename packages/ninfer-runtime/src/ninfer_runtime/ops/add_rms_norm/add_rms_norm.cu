// x += y, and the norm of the sum: one row of D values for THREADS threads, kept in registers.
#include "ninfer/elements.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

// One block a row. A thread holds PER packs of V columns; all rows are contiguous.
template <int V, int PER, int THREADS, class X, class Y, class W, class O>
__global__ __launch_bounds__(THREADS) void add_rms_norm_row_kernel(X* x, const Y* y,
                                                                   const W* weight, O* out,
                                                                   u32 columns, float eps,
                                                                   float offset) {
  __shared__ float partial[THREADS / 32];
  const i64 begin = (i64)blockIdx.x * columns;
  Pack<W, V> scale[PER];
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const u32 column = (i * THREADS + threadIdx.x) * V;
    if (column < columns) scale[i] = load_pack<V>(weight + column);
  }
  wait_for_previous_kernels();
  let_next_kernel_start();
  Pack<X, V> held[PER];
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const u32 column = (i * THREADS + threadIdx.x) * V;
    if (column < columns) {
      held[i] = load_pack<V>(x + begin + column);
      const Pack<Y, V> added = load_pack<V>(y + begin + column);
#pragma unroll
      for (int j = 0; j < V; j++) {
        held[i].set(j, held[i][j] + added[j]);
        sum = fmaf(held[i][j], held[i][j], sum);
      }
      store_pack<V>(x + begin + column, held[i]);
    }
  }
  sum = block_sum<THREADS>(sum, partial, threadIdx.x);
  const float inverse = rsqrtf(sum / columns + eps);
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const u32 column = (i * THREADS + threadIdx.x) * V;
    if (column < columns) {
      Pack<O, V> result;
#pragma unroll
      for (int j = 0; j < V; j++) result.set(j, held[i][j] * inverse * (scale[i][j] + offset));
      store_pack<V>(out + begin + column, result);
    }
  }
}

}  // namespace ninfer
