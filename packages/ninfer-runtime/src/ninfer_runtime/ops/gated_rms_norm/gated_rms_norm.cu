// The norm of a row times silu(gate): one row of D values for one warp, kept in registers.
#include "ninfer/elements.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

// A block has one row for each of its warps, and a lane holds PER packs of V columns.
template <int V, int PER, class X, class G, class W, class O>
__global__ void gated_rms_norm_row_kernel(const X* x, i64 x_outer, i64 x_inner, const G* gate,
                                          i64 gate_outer, i64 gate_inner, const W* weight, O* out,
                                          i64 out_outer, i64 out_inner, u32 rows, u32 inner,
                                          u32 columns, float eps) {
  const u32 lane = threadIdx.x % 32;
  const u32 row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  wait_for_previous_kernels();
  let_next_kernel_start();
  if (row >= rows) return;
  const X* source = Rows<const X>{x, x_outer, x_inner}.row(row, inner);
  const G* gates = Rows<const G>{gate, gate_outer, gate_inner}.row(row, inner);
  Pack<X, V> held[PER];
  Pack<G, V> gated[PER];
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const u32 column = (i * 32 + lane) * V;
    if (column < columns) {
      held[i] = load_pack<V>(source + column);
      gated[i] = load_pack<V>(gates + column);
#pragma unroll
      for (int j = 0; j < V; j++) sum = fmaf(held[i][j], held[i][j], sum);
    }
  }
  const float inverse = rsqrtf(warp_sum(sum) / columns + eps);
  O* target = Rows<O>{out, out_outer, out_inner}.row(row, inner);
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const u32 column = (i * 32 + lane) * V;
    if (column < columns) {
      const Pack<W, V> scale = load_pack<V>(weight + column);
      Pack<O, V> result;
#pragma unroll
      for (int j = 0; j < V; j++)
        result.set(j, held[i][j] * inverse * scale[j] * silu(gated[i][j]));
      store_pack<V>(target + column, result);
    }
  }
}

}  // namespace ninfer
