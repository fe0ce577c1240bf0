// x += y, and the norm of the sum: one row of D values for THREADS threads, kept in registers.
#include "ninfer/launch_order.cuh"
#include "ninfer/norm_row.cuh"

namespace ninfer {

// `half` to `block`: where the rows go in the order of products (ActivationRows).
// One block a row. A thread holds PER packs of V columns; all rows are contiguous.
template <int V, int PER, int THREADS, class X, class Y, class W, class O>
__global__ __launch_bounds__(THREADS) void add_rms_norm_row_kernel(
    X* x, const Y* y, const W* weight, O* out, u32 columns, float eps, float offset, u32* half,
    float* half_factor, u32* words, float* words_factor, int block) {
  const i64 begin = (i64)blockIdx.x * columns;
  Pack<W, V> scale[PER];
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const u32 column = (i * THREADS + threadIdx.x) * V;
    if (column < columns) scale[i] = load_pack<V>(weight + column);
  }
  let_next_kernel_start();
  wait_for_previous_kernels();
  Pack<X, V> held[PER];
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const u32 column = (i * THREADS + threadIdx.x) * V;
    if (column < columns) {
      held[i] = load_pack<V>(x + begin + column);
      const Pack<Y, V> added = load_pack<V>(y + begin + column);
#pragma unroll
      for (int j = 0; j < V; j++) held[i].set(j, held[i][j] + added[j]);
      store_pack<V>(x + begin + column, held[i]);
    }
  }
  normalise_row<V, PER, THREADS>(held, scale, offset, eps, columns, out + begin,
                                 ActivationRows{half, half_factor, words, words_factor, block},
                                 blockIdx.x);
}

}  // namespace ninfer
