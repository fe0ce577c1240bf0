// Products that are added to a residual, and the norm of the sums. A norm divides each row by one
// number, so that it may be taken out of the products that follow: they get the sum times the norm's
// weight, and the squares of the sum.
#pragma once
#include "ninfer/activation_rows.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

// What the rows that a product takes are still to be multiplied with.
struct DeferredNorm {
  const float* squares;  // [T][count], null if the norm is done
  int count;
  float inverse_size, eps;

  // What a lane adds to the squares of a row; and from all lanes of a warp, what the row is to be
  // multiplied with. `scale` is what its values have been divided by.
  NINFER_DEVICE float part(int row, int lane) const {
    float sum = 0.f;
#pragma unroll 4
    for (int i = lane; i < count; i += 32) sum += __ldcg(squares + row * count + i);
    return sum;
  }
  NINFER_DEVICE float factor_of(float part, float scale) const {
    return scale * rsqrtf(warp_sum(part) * inverse_size + eps);
  }
  NINFER_DEVICE float factor(int row, int lane, float scale) const {
    return factor_of(part(row, lane), scale);
  }
};

// Where sums of 16 columns of all rows go, whose kernel makes no more of them.
struct ResidualSums {
  u16* residual;           // [T, size], bf16; null if nothing is added
  const u16* norm_weight;  // [size]
  float norm_offset;
  float* squares;  // [T][size / 16]
  ActivationRows products;
  int size;

  // What a sum starts from, and its weight.
  struct Before {
    float sum, weight;
  };
  NINFER_DEVICE Before load(int row, int k) const {
    return {bf16_to_float(residual[(i64)row * size + k]),
            bf16_to_float(norm_weight[k]) + norm_offset};
  }

  // Adds `v`; 16 neighbouring lanes, which come together, hold the columns from a multiple of 16 on.
  NINFER_DEVICE void store(int row, int k, const Before& before, float v) const {
    const u16 bits = float_to_bf16(before.sum + v);
    const float sum = bf16_to_float(bits), weighted = sum * before.weight;
    residual[(i64)row * size + k] = bits;
    const u32 at = products.place_of(row, k);
    ((u16*)products.half)[at] = float_to_f16(weighted * (1.f / FIXED_FACTOR));
    ((u16*)products.words)[at] = float_to_bf16(weighted);
    float square = sum * sum;
#pragma unroll
    for (int d = 8; d > 0; d /= 2)
      square += __shfl_xor_sync(0xffffu << (threadIdx.x & 16), square, d);
    if (k % 16 == 0) squares[row * (size / 16) + k / 16] = square;
  }
};

}  // namespace ninfer
