// Cosines and sines of the angles, in double precision before they are rounded.
#include "ninfer/launch_order.cuh"
#include "ninfer/prelude.cuh"

namespace ninfer {

// One thread for each token and pair. `axes`: two bits for each pair, the lower 32 pairs first.
__global__ void rotary_table_kernel(const int* positions, float* cosines, float* sines, u32 tokens,
                                    u32 pairs, double theta, u64 axes_low, u64 axes_high) {
  let_next_kernel_start();
  const u32 index = blockIdx.x * blockDim.x + threadIdx.x;
  const u32 token = index / pairs, pair = index % pairs;
  const u32 axis = (u32)((pair < 32 ? axes_low : axes_high) >> (2 * (pair % 32))) & 3;
  // In half turns, which reduce exactly however far the position is.
  const double frequency = pow(theta, -(double)pair / pairs) / 3.14159265358979323846;
  wait_for_previous_kernels();
  if (token >= tokens) return;
  double sine, cosine;
  sincospi(positions[axis * tokens + token] * frequency, &sine, &cosine);
  cosines[index] = (float)cosine;
  sines[index] = (float)sine;
}

}  // namespace ninfer
