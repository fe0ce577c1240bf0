// out = silu(gate) * up.
#include "ninfer/pointwise.cuh"

namespace ninfer {

template <int V, class X, class Y, class O>
__global__ __launch_bounds__(256) void swiglu_kernel(const X* x, i64 x_outer, i64 x_inner,
                                                     const Y* y, i64 y_outer, i64 y_inner, O* out,
                                                     i64 out_outer, i64 out_inner, u32 rows,
                                                     u32 inner, u32 columns) {
  pointwise<V>(Rows<const X>{x, x_outer, x_inner}, Rows<const Y>{y, y_outer, y_inner},
               Rows<O>{out, out_outer, out_inner}, rows, inner, columns,
               [](float a, float b) { return silu(a) * b; });
}

}  // namespace ninfer
