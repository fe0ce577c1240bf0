// Rows of a table by token id.
#include "ninfer/elements.cuh"
#include "ninfer/launch_order.cuh"

namespace ninfer {

// One block a token, V columns at a time for each thread.
template <int V, class W, class O>
__global__ __launch_bounds__(256) void embedding_kernel(const int* token_ids, const W* table,
                                                        O* out, u32 columns) {
  wait_for_previous_kernels();
  let_next_kernel_start();
  const W* source = table + (i64)token_ids[blockIdx.x] * columns;
  O* target = out + (i64)blockIdx.x * columns;
  for (u32 column = threadIdx.x * V; column < columns; column += 256 * V) {
    const Pack<W, V> row = load_pack<V>(source + column);
    Pack<O, V> result;
#pragma unroll
    for (int i = 0; i < V; i++) result.set(i, row[i]);
    store_pack<V>(target + column, result);
  }
}

}  // namespace ninfer
