// Two or three products of the same up to 8 columns in one launch: the blocks are shared out among
// them. So all weights are fetched ahead, while the launch before still runs, and all end together.
#include "ninfer/skinny_product.cuh"

namespace ninfer {

// One of the products: format, stages and place of x as of skinny_product.cuh.
template <int F, int KC, int KL, int ST, int XM, int AHEAD>
struct StackedPart {
  template <int XR, int W, int MB>
  using Product = SkinnyProduct<F, XR, W, KC, KL, ST, 1, MB, XM, STORED, AHEAD, false>;
  static constexpr bool TAKES_WORDS = F == BF16;
};

struct NoPart {};
template <class>
constexpr bool HAS_PART = true;
template <>
constexpr bool HAS_PART<NoPart> = false;

// `half`, `words`: x as f16 and as bf16. From `second` and `third` on blocks have the second and the
// third product.
template <int XR, int W, int MB, class A, class B, class C>
__global__ __launch_bounds__(W * 32, MB) void linear_stacked_kernel(
    const u8* half, const u8* words, const float* half_factor, int columns, int stride,
    int records, int float_output, const float* squares, int square_count, float inverse_size,
    float eps, float norm_scale, int second, int third, const u8* weight_a, void* y_a,
    const float* row_scale_a, int tiles_a, int rows_a, const u8* weight_b, void* y_b,
    const float* row_scale_b, int tiles_b, int rows_b, const u8* weight_c, void* y_c,
    const float* row_scale_c, int tiles_c, int rows_c) {
  const auto run = [&](auto part, const u8* weight, void* y, const float* row_scale, int tiles,
                       int rows, int first, int end) {
    using Part = decltype(part);
    SkinnyArguments p = {};
    p.weight = weight;
    p.x = Part::TAKES_WORDS ? words : half;
    p.y = y;
    p.row_scale = row_scale;
    p.column_scale = half_factor;
    p.tiles = tiles;
    p.rows = rows;
    p.columns = columns;
    p.stride = stride;
    p.records = records;
    p.float_output = float_output;
    p.squares = squares;
    p.square_count = square_count;
    p.inverse_size = inverse_size;
    p.eps = eps;
    p.norm_scale = Part::TAKES_WORDS ? 1.f : norm_scale;
    const typename Part::template Product<XR, W, MB> product(p);
    product.multiply_in(blockIdx.x - first, end - first);
  };
  const int block = blockIdx.x, blocks = gridDim.x;
  if (block < second) {
    run(A(), weight_a, y_a, row_scale_a, tiles_a, rows_a, 0, second);
  } else if (block < third) {
    run(B(), weight_b, y_b, row_scale_b, tiles_b, rows_b, second, third);
  } else if constexpr (HAS_PART<C>) {
    run(C(), weight_c, y_c, row_scale_c, tiles_c, rows_c, third, blocks);
  }
}

}  // namespace ninfer
