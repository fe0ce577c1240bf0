// Rows of activations in the order of B fragments, for more tokens than one product has columns.
#include "ninfer/activation_rows.cuh"
#include "ninfer/expert_groups.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

// One block puts a row into fragment order, with zeros up to `padded`; f16 or, with KEEP_BF16, bf16.
template <bool KEEP_BF16>
__global__ __launch_bounds__(256) void moe_rows_kernel(const u16* x, i64 stride, u16* fragments,
                                                       float* factors, int size, int padded) {
  __shared__ float partial[8];
  wait_for_previous_kernels();
  let_next_kernel_start();
  const u16* row = x + blockIdx.x * stride;
  float factor = 1.f;
  if constexpr (!KEEP_BF16) {
    float largest = 0.f;
    for (int k = threadIdx.x; k < size; k += 256)
      largest = fmaxf(largest, fabsf(bf16_to_float(row[k])));
    factor = packing_factor(block_max<256>(largest, partial, threadIdx.x));
  }
  if (threadIdx.x == 0) factors[blockIdx.x] = factor;
  const float inverse = 1.f / factor;
  u16* target = fragments + (i64)blockIdx.x * padded;
  for (int k = threadIdx.x; k < padded; k += 256) {
    u16 word = k < size ? row[k] : 0;
    if constexpr (!KEEP_BF16) word = float_to_f16(bf16_to_float(word) * inverse);
    target[fragment_place(k)] = word;
  }
}

}  // namespace ninfer
