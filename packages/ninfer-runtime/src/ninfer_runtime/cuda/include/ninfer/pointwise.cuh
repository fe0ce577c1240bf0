// A function of two tensors, element by element, over rows that may be strided.
#pragma once
#include "ninfer/elements.cuh"
#include "ninfer/launch_order.cuh"

namespace ninfer {

// Each thread computes V neighbouring elements of a row; `columns` is a multiple of V.
template <int V, class X, class Y, class O, class F>
NINFER_DEVICE void pointwise(Rows<const X> x, Rows<const Y> y, Rows<O> out, u32 rows, u32 inner,
                             u32 columns, F function) {
  let_next_kernel_start();
  wait_for_previous_kernels();
  const u32 index = blockIdx.x * blockDim.x + threadIdx.x, width = columns / V;
  const u32 row = index / width, column = index % width * V;
  if (row >= rows) return;
  const Pack<X, V> a = load_pack<V>(x.row(row, inner) + column);
  const Pack<Y, V> b = load_pack<V>(y.row(row, inner) + column);
  Pack<O, V> result;
#pragma unroll
  for (int i = 0; i < V; i++) result.set(i, function(a[i], b[i]));
  store_pack<V>(out.row(row, inner) + column, result);
}

}  // namespace ninfer
