// Sums over the threads of a warp or block, always in the same order.
#pragma once
#include "ninfer/prelude.cuh"

namespace ninfer {

// The sum over groups of WIDTH neighbouring lanes, in all of them.
template <int WIDTH = 32>
NINFER_DEVICE float warp_sum(float x) {
#pragma unroll
  for (int d = WIDTH / 2; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}

template <int WIDTH = 32>
NINFER_DEVICE float warp_max(float x) {
#pragma unroll
  for (int d = WIDTH / 2; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
  return x;
}

// The largest of a block of THREADS threads in all of them, of values that are not negative; `partial` has
// THREADS / 32 floats of shared memory that nobody else touches before the next barrier.
template <int THREADS>
NINFER_DEVICE float block_max(float x, float* partial, int thread) {
  x = warp_max(x);
  if constexpr (THREADS > 32) {
    if (thread % 32 == 0) partial[thread / 32] = x;
    __syncthreads();
    x = 0.f;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) x = fmaxf(x, partial[i]);
  }
  return x;
}

// Likewise the sum of x.x and the largest x.y.
template <int THREADS>
NINFER_DEVICE float2 block_sum_and_max(float2 x, float2* partial, int thread) {
  x = make_float2(warp_sum(x.x), warp_max(x.y));
  if constexpr (THREADS > 32) {
    if (thread % 32 == 0) partial[thread / 32] = x;
    __syncthreads();
    x = make_float2(0.f, 0.f);
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) {
      const float2 part = partial[i];
      x.x += part.x;
      x.y = fmaxf(x.y, part.y);
    }
  }
  return x;
}

}  // namespace ninfer
