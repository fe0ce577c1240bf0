// Linear for up to 8 columns: y[T, N] = x[T, K] * weight[N, K]^T; see skinny_product.cuh.
#include "ninfer/skinny_product.cuh"

namespace ninfer {

template <int F, int XR, int W, int KC, int KL, int ST, int S, int MB, int XM, int RESULT, int AHEAD,
          int HELD>
__global__ __launch_bounds__(W * 32, MB) void linear_skinny_kernel(
    const u8* __restrict__ weight, const u8* x, void* y, const float* __restrict__ row_scale,
    const float* column_scale, int tiles, int rows, int columns, int stride, int records,
    int float_output, int beside, const float* squares, int square_count, float inverse_size,
    float eps, float norm_scale, u16* residual, const u16* norm_weight, float norm_offset,
    float* squares_out, u32* half, float* half_factor, u32* words, float* words_factor,
    u64* exchanged) {
  const SkinnyArguments arguments = {
      weight, x, y, row_scale, column_scale, tiles, rows, columns, stride, records, float_output,
      beside, squares, square_count, inverse_size, eps, norm_scale, residual, norm_weight,
      norm_offset, squares_out, half, half_factor, words, words_factor, exchanged};
  const SkinnyProduct<F, XR, W, KC, KL, ST, S, MB, XM, RESULT, AHEAD, HELD> product(arguments);
  product.multiply_in(blockIdx.x, gridDim.x);
}

}  // namespace ninfer
