// The normalised Walsh-Hadamard transform of order 256 over one warp.
#pragma once
#include "ninfer/prelude.cuh"

namespace ninfer {

// Lane l holds elements 8l .. 8l+7; H[i][j] = (-1)^popcount(i & j) / 16 is its own inverse.
NINFER_DEVICE void hadamard_256(float* x, int lane) {
#pragma unroll
  for (int d = 1; d < 8; d *= 2)
#pragma unroll
    for (int i = 0; i < 8; i++)
      if ((i & d) == 0) {
        const float a = x[i], b = x[i + d];
        x[i] = a + b;
        x[i + d] = a - b;
      }
#pragma unroll
  for (int d = 1; d < 32; d *= 2)
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float other = __shfl_xor_sync(~0u, x[i], d);
      x[i] = lane & d ? other - x[i] : x[i] + other;
    }
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] *= 1.f / 16;
}

}  // namespace ninfer
