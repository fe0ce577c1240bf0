// Activations in the order that the linear kernels read: [T, K] bf16 to f16 (or unchanged to bf16).
#include "ninfer/activation_rows.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

// Columns k .. k+7 of a row of `size`, zeros behind its end; `aligned`: they can be read together.
NINFER_DEVICE Pack<bf16, 8> load_eight(const bf16* source, int k, int size, bool aligned) {
  if (aligned && k + 8 <= size) return load_pack<8>(source + k);
  Pack<bf16, 8> v = {};
#pragma unroll
  for (int i = 0; i < 8; i++)
    if (k + i < size) v.element[i] = source[k + i];
  return v;
}

// One block packs one row of the target; rows past T become zeros. A thread holds the first packs.
// BF16: keep the words.
template <bool BF16>
__global__ __launch_bounds__(512) void pack_activations_kernel(const bf16* x, u32* packed,
                                                               float* factor, int columns, int size,
                                                               i64 stride, int records, int block,
                                                               int aligned) {
  constexpr int HELD = 5;  // packs of a thread: K up to 20480 is read once
  __shared__ float partial[16];
  let_next_kernel_start();
  wait_for_previous_kernels();
  const int row = blockIdx.x, packs = records * 8;
  const bool exists = row < columns;
  const bf16* source = x + row * stride;
  const auto load = [&](int i) {
    return exists ? load_eight(source, i * 8, size, aligned) : Pack<bf16, 8>{};
  };
  Pack<bf16, 8> held[HELD];
#pragma unroll
  for (int j = 0; j < HELD; j++)
    if (j * 512 + threadIdx.x < packs) held[j] = load(j * 512 + threadIdx.x);

  float scale = 1.f;
  if constexpr (!BF16) {
    float largest = 0.f;
#pragma unroll
    for (int j = 0; j < HELD; j++)
      if (j * 512 + threadIdx.x < packs) largest = fmaxf(largest, largest_of(held[j]));
    for (int i = HELD * 512 + threadIdx.x; i < packs; i += 512)
      largest = fmaxf(largest, largest_of(load(i)));
    largest = block_max<512>(largest, partial, threadIdx.x);
    scale = packing_factor(largest);
  }
  const float inverse = 1.f / scale;
  const ActivationRows target = {packed, factor, packed, factor, block};
  if (threadIdx.x == 0) factor[row] = scale;
  const auto store = [&](int i, const Pack<bf16, 8>& v) {
    if constexpr (BF16)
      target.store_words(row, i * 8, v);
    else
      target.store_half(row, i * 8, v, inverse);
  };
#pragma unroll
  for (int j = 0; j < HELD; j++)
    if (j * 512 + threadIdx.x < packs) store(j * 512 + threadIdx.x, held[j]);
  for (int i = HELD * 512 + threadIdx.x; i < packs; i += 512) store(i, load(i));
}

}  // namespace ninfer
