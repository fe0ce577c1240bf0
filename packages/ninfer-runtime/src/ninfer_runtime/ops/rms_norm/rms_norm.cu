// One row of D values for THREADS threads, kept in registers between its two uses.
#include "ninfer/launch_order.cuh"
#include "ninfer/norm_row.cuh"

namespace ninfer {

// `half` to `block`: where the rows go in the order of products (ActivationRows).
// A block has one row for every THREADS of its threads, and a thread holds PER packs of V columns.
template <int V, int PER, int THREADS, class X, class W, class O>
__global__ void rms_norm_row_kernel(const X* x, i64 x_outer, i64 x_inner, const W* weight, O* out,
                                    i64 out_outer, i64 out_inner, u32 rows, u32 inner, u32 columns,
                                    float eps, float offset, u32* half, float* half_factor,
                                    u32* words, float* words_factor, int block) {
  const u32 thread = threadIdx.x % THREADS;
  const u32 row = blockIdx.x * (blockDim.x / THREADS) + threadIdx.x / THREADS;
  Pack<W, V> scale[PER];
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const u32 column = (i * THREADS + thread) * V;
    if (column < columns) scale[i] = load_pack<V>(weight + column);
  }
  let_next_kernel_start();
  wait_for_previous_kernels();
  if (row >= rows) return;
  const X* source = Rows<const X>{x, x_outer, x_inner}.row(row, inner);
  Pack<X, V> held[PER];
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const u32 column = (i * THREADS + thread) * V;
    if (column < columns) held[i] = load_pack<V>(source + column);
  }
  O* target = Rows<O>{out, out_outer, out_inner}.row(row, inner);
  normalise_row<V, PER, THREADS>(held, scale, offset, eps, columns, target,
                                 ActivationRows{half, half_factor, words, words_factor, block},
                                 row);
}

}  // namespace ninfer
