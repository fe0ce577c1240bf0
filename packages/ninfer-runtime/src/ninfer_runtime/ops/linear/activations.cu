// Activations in the order that the linear kernels read: [T, K] bf16 to f16 (or unchanged to bf16).
#include "ninfer/launch_order.cuh"
#include "ninfer/prelude.cuh"

namespace ninfer {

// 2^e of a column, where e is 0 or the smallest exponent with largest * 2^-e <= 2^14. What is not
// finite stays as it is and shows in the result.
NINFER_DEVICE float column_factor(float largest) {
  const u32 bits = __float_as_uint(largest);
  const int exponent = (int)(bits >> 23) - 127 - 14 + ((bits & 0x7fffffu) != 0);
  return exponent <= 0 || exponent > 114 ? 1.f : __uint_as_float((u32)(127 + exponent) << 23);
}

// One block packs one column of the target; columns past T become zeros.
// TILES: rows of 64 swizzled values, `block` of them a tile, instead of B fragments of `block` rows.
// BF16: keep the words. Columns of B fragments lie in blocks of `block`, one after the other.
template <bool TILES, bool BF16>
__global__ __launch_bounds__(256) void pack_activations_kernel(const u16* x, u16* packed,
                                                               float* column_scale, int columns,
                                                               int size, int stride, int records,
                                                               int block) {
  __shared__ float largest_of_warp[8];
  wait_for_previous_kernels();
  let_next_kernel_start();
  const int column = blockIdx.x, row = column % block;
  const bool exists = column < columns;
  const u16* source = x + (u64)column * stride;

  float factor = 1.f;
  if constexpr (!BF16) {
    float largest = 0.f;
    if (exists)
      for (int k = threadIdx.x; k < size; k += 256)
        largest = fmaxf(largest, fabsf(bf16_to_float(source[k])));
#pragma unroll
    for (int i = 16; i > 0; i >>= 1)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, i));
    if (threadIdx.x % 32 == 0) largest_of_warp[threadIdx.x / 32] = largest;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++) largest = fmaxf(largest, largest_of_warp[i]);
    factor = column_factor(largest);
  }
  if (threadIdx.x == 0) column_scale[column] = factor;
  const float inverse = 1.f / factor;

  u16* target = packed + (u64)(column / block) * records * 64 * block;
  for (int k = threadIdx.x; k < records * 64; k += 256) {
    u16 word = exists && k < size ? source[k] : 0;
    if constexpr (!BF16) word = float_to_f16(bf16_to_float(word) * inverse);
    const int tile = k >> 6, inner = k & 63;
    if constexpr (TILES) {
      target[(u64)(tile * block + row) * 64 + (inner ^ ((row & 7) * 8))] = word;
    } else {
      const int half = inner >> 5, step = inner >> 4 & 1, upper = inner >> 3 & 1;
      const int q = inner >> 1 & 3, odd = inner & 1;
      target[((tile * 2 + half) * block + row) * 32 + q * 8 + step * 4 + upper * 2 + odd] = word;
    }
  }
}

}  // namespace ninfer
