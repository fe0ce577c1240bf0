// Words that travel as a parameter of the launch.
#include "ninfer/launch_order.cuh"
#include "ninfer/prelude.cuh"

namespace ninfer {

template <int N>
struct Words {
  u32 word[N];
};

template <int N>
__global__ void store_words_kernel(const __grid_constant__ Words<N> words, u32* to, u32 count) {
  let_next_kernel_start();
  wait_for_previous_kernels();
  for (u32 i = threadIdx.x; i < count; i += blockDim.x) to[i] = words.word[i];
}

}  // namespace ninfer
