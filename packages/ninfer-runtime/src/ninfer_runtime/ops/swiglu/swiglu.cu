// out = silu(gate) * up, element by element or by rows that a product will read.
#include "ninfer/activation_rows.cuh"
#include "ninfer/cluster.cuh"
#include "ninfer/pointwise.cuh"
#include "ninfer/reduce.cuh"

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

// The S blocks of a cluster make a row: each thread PER packs of 8, and all of them the row's factor.
template <int S, int PER>
__global__ __launch_bounds__(512) void swiglu_rows_kernel(const bf16* gate, i64 gate_stride,
                                                          const bf16* up, i64 up_stride, bf16* out,
                                                          u32 packs, u32* half,
                                                          float* half_factor, u32* words,
                                                          float* words_factor, int block) {
  __shared__ float of_warp[16], of_block[S];
  if constexpr (S > 1) arrive_at_cluster();  // the others have begun: their memory may be written
  let_next_kernel_start();
  wait_for_previous_kernels();
  const u32 row = blockIdx.x / S, rank = blockIdx.x % S;
  const u32 begin = rank * (packs / 4) / S * 4, end = (rank + 1) * (packs / 4) / S * 4;
  Pack<bf16, 8> held[PER];
  float largest = 0.f;
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const u32 p = begin + i * blockDim.x + threadIdx.x;
    if (p < end) {
      const auto a = load_pack<8>(gate + row * gate_stride + p * 8);
      const auto b = load_pack<8>(up + row * up_stride + p * 8);
#pragma unroll
      for (int j = 0; j < 8; j++) held[i].set(j, silu(a[j]) * b[j]);
      store_pack<8>(out + (u64)row * packs * 8 + p * 8, held[i]);
      largest = fmaxf(largest, largest_of(held[i]));
    }
  }
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
  __syncthreads();
  largest = 0.f;
  for (int i = 0; i < blockDim.x / 32; i++) largest = fmaxf(largest, of_warp[i]);
  if constexpr (S > 1) {
    wait_for_cluster();
    if (threadIdx.x < S) store_cluster_float(shared_address(of_block + rank), threadIdx.x, largest);
    arrive_at_cluster();
    wait_for_cluster();
#pragma unroll
    for (int i = 0; i < S; i++) largest = fmaxf(largest, of_block[i]);
  }
  const ActivationRows products = {half, half_factor, words, words_factor, block};
  const float factor = packing_factor(largest), inverse = 1.f / factor;
  if (rank == 0 && threadIdx.x == 0) products.store_factors(row, factor);
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const u32 p = begin + i * blockDim.x + threadIdx.x;
    if (p < end) products.store_half(row, p * 8, held[i], inverse);
  }
}

}  // namespace ninfer
