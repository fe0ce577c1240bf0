// Sampled tokens to where they are executed next. One block: a step has few tokens.
#include "ninfer/elements.cuh"
#include "ninfer/launch_order.cuh"

namespace ninfer {

__global__ __launch_bounds__(256) void feed_tokens_kernel(int* token_ids, const int* sampled,
                                                          int* counts, const int* counts_rows,
                                                          u32 tokens, u32 columns,
                                                          u32 vocabulary) {
  let_next_kernel_start();
  wait_for_previous_kernels();
  for (u32 t = threadIdx.x; t < tokens; t += blockDim.x) {
    const int row = counts_rows[t / columns];
    int id = token_ids[t];
    if (id < 0) {
      const int fed = sampled[-1 - id];
      id = fed < 0 ? 0 : fed;
      token_ids[t] = id;
    }
    if (row >= 0) atomicAdd(counts + (i64)row * vocabulary + id, 1);
  }
}

}  // namespace ninfer
