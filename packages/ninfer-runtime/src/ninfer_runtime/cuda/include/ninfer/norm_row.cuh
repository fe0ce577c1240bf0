// The norm of a row that lies in the registers of THREADS threads.
#pragma once
#include "ninfer/activation_rows.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

// Writes held / sqrt(mean(held^2) + eps) * (scale + offset) to `target`, and as row `row` of `products`
// where it asks for it. A thread holds PER packs of V columns, THREADS packs apart.
template <int V, int PER, int THREADS, class X, class W, class O>
NINFER_DEVICE void normalise_row(const Pack<X, V> (&held)[PER], const Pack<W, V> (&scale)[PER],
                                 float offset, float eps, u32 columns, O* target,
                                 const ActivationRows& products, u32 row) {
  constexpr bool PACKS = V == 8 && sizeof(O) == 2;
  __shared__ float2 partial[THREADS / 32];
  const u32 thread = threadIdx.x % THREADS;
  float2 total = {0.f, 0.f};  // the sum of squares; the largest element, before `inverse`
#pragma unroll
  for (int i = 0; i < PER; i++)
    if ((i * THREADS + thread) * V < columns)
#pragma unroll
      for (int j = 0; j < V; j++) {
        total.x = fmaf(held[i][j], held[i][j], total.x);
        if constexpr (PACKS) total.y = fmaxf(total.y, fabsf(held[i][j] * (scale[i][j] + offset)));
      }
  total = block_sum_and_max<THREADS>(total, partial, thread);
  const float inverse = rsqrtf(total.x / columns + eps);
  const float factor = packing_factor(total.y * inverse), packing = 1.f / factor;
#pragma unroll
  for (int i = 0; i < PER; i++) {
    const u32 column = (i * THREADS + thread) * V;
    if (column < columns) {
      Pack<O, V> result;
#pragma unroll
      for (int j = 0; j < V; j++) result.set(j, held[i][j] * inverse * (scale[i][j] + offset));
      store_pack<V>(target + column, result);
      if constexpr (PACKS) {
        if (products.half) products.store_half(row, column, result, packing);
        if (products.words) products.store_words(row, column, result);
      }
    }
  }
  if (PACKS && thread == 0) products.store_factors(row, factor);
}

}  // namespace ninfer
