// Linear for 9 to 16 columns on sm_90a: y[T, N] = x[T, K] * weight[N, K]^T, K up to some thousand.
//
// As in skinny.cu the warps of a block split K of one row tile, and each streams its records through a
// ring of its own. It holds its part of x in registers, so that a weight is decoded once and multiplied
// with both blocks of 8 columns where it is.
#include "ninfer/activation_rows.cuh"
#include "ninfer/async_copy.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/prelude.cuh"
#include "ninfer/product_result.cuh"
#include "ninfer/weight_record.cuh"

extern __shared__ __align__(1024) u8 dynamic_shared[];

#if NINFER_HAS_BULK_COPY

namespace ninfer {

constexpr int COLUMNS = 16, BLOCKS = COLUMNS / 8;

// acc[n] += record * b[n], where b[n][2s], b[n][2s + 1] is the B fragment of step s.
template <int F>
NINFER_DEVICE void multiply_columns(float (*acc)[4], const LaneRecord<F>& r, const u32 (*b)[8]) {
  constexpr int GROUPS = F <= Q8 ? RecordShape<F>::GROUPS : 0;  // whose scales multiply sums
  if constexpr (GROUPS == 0) {
#pragma unroll
    for (int s = 0; s < 4; s++) {
      u32 a[4];
      decode_scaled_step<F>(r, s, a);
#pragma unroll
      for (int n = 0; n < BLOCKS; n++)
        mma_16x8x16<F == BF16>(acc[n], a, b[n][2 * s], b[n][2 * s + 1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
      float sum[BLOCKS][4] = {};
#pragma unroll
      for (int s = i * 4 / GROUPS; s < (i + 1) * 4 / GROUPS; s++) {
        u32 a[4];
        decode_step<F>(r, s, a);
#pragma unroll
        for (int n = 0; n < BLOCKS; n++)
          mma_16x8x16<false>(sum[n], a, b[n][2 * s], b[n][2 * s + 1]);
      }
      const u32 scales = scale_pair<F>(r, i);
      const float s0 = f16_to_float((u16)scales), s1 = f16_to_float((u16)(scales >> 16));
#pragma unroll
      for (int n = 0; n < BLOCKS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) acc[n][e] = fmaf(sum[n][e], e < 2 ? s0 : s1, acc[n][e]);
    }
  }
}

// The B fragments of columns 8n .. 8n + 7 from a tile of x that is swizzled for wgmma.
NINFER_DEVICE void load_fragment(const u8* tile, int n, int lane, u32* b) {
  const int g = lane >> 2, q = lane & 3;
  const u8* row = tile + (8 * n + g) * 128;
#pragma unroll
  for (int i = 0; i < 2; i++) {  // 16 bytes of every lane hold two words for each of four lanes
    const uint4 v = load_global_16(row + ((4 * i + q) ^ g) * 16);
    u32 words[4] = {v.x, v.y, v.z, v.w};
    transpose_over_four_lanes(words, ~0u);
#pragma unroll
    for (int j = 0; j < 4; j++) b[4 * i + j] = words[j];
  }
}

// F: weight format. W: warps. XM: records of a warp and row tile, which are those of a stage. ST: stages.
// `beside` and RESULT: as in skinny.cu, but nothing is added to a residual.
template <int F, int W, int XM, int ST, int RESULT>
__global__ __launch_bounds__(W * 32, 1) void linear_medium_kernel(
    const u8* __restrict__ weight, const u8* x, void* y, const float* __restrict__ row_scale,
    const float* column_scale, int tiles, int rows, int columns, int stride, int records,
    int float_output, int beside, u32* half, float* half_factor, u32* words, float* words_factor) {
  static_assert(RESULT != ADDED, "no kernel");
  constexpr int BYTES = RecordShape<F>::BYTES, STAGE = XM * BYTES, X_TILE = COLUMNS * 128;
  const u32 shared = shared_address(dynamic_shared);
  const int lane = threadIdx.x & 31, warp = warp_index();
  // Where records do not divide, some are again those of another warp: then x counts as zero.
  const int wanted = warp * XM, first = min_int(wanted, records - XM);

  // A thread finishes two columns of a row, in one of `TURNS` row tiles. Sums of a warp lie as [pair of
  // columns][row]; behind each pair 32 bytes are free, for the banks' sake.
  constexpr int PAIR_BYTES = 160, SUM_BYTES = COLUMNS / 2 * PAIR_BYTES;
  constexpr int ELEMENTS = COLUMNS / 2 * 16, TURNS = W * 32 / ELEMENTS;
  const u32 factors_at = shared + 1024 - COLUMNS * 4;
  static_assert(W * ST * 8 <= 1024 - COLUMNS * 4 && TURNS > 0, "barriers and factors; threads");
  const u32 ring_at = shared + 1024, sums_at = ring_at + W * ST * STAGE;

  const int my_tiles = (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
  const u32 my_ring = ring_at + warp * (ST * STAGE), my_barriers = shared + warp * ST * 8;
  const auto fill = [&](int t) {  // by one lane
    if (t >= my_tiles) return;
    const u64 record = (u64)(blockIdx.x + t * gridDim.x) * records + first;
    const u32 slot = t % ST, barrier = my_barriers + slot * 8;
    barrier_expect(barrier, STAGE);
    bulk_copy(my_ring + slot * STAGE, weight + record * BYTES, STAGE, barrier, EVICT_FIRST);
  };
  if (lane == 0) {
#pragma unroll
    for (int i = 0; i < ST; i++) barrier_init(my_barriers + i * 8, 1);
    barrier_init_fence();
#pragma unroll
    for (int i = 0; i < ST; i++) fill(i);
  }
  __syncwarp();

  if (!beside) wait_for_previous_kernels();
  u32 b[XM][BLOCKS][8];
#pragma unroll
  for (int i = 0; i < XM; i++)
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
      load_fragment(x + (u64)(first + i) * X_TILE, n, lane, b[i][n]);
#pragma unroll
      for (int j = 0; j < 8; j++)
        if (first + i < wanted) b[i][n][j] = 0;
    }
  let_next_kernel_start();

  if (threadIdx.x < columns)  // read behind the first barrier
    store_shared_float(factors_at + threadIdx.x * 4,
                       record_factor<F>() * (F == BF16 ? 1.f : column_scale[threadIdx.x]));
  const ActivationRows products = {half, half_factor, words, words_factor, COLUMNS};
  if (RESULT == GATED && blockIdx.x == 0 && threadIdx.x < columns)
    products.store_factors(threadIdx.x, FIXED_FACTOR);

  const auto store_element = [&](int column, int row, float v) {
    const u64 at = (u64)column * stride + row;
    if (float_output)
      ((float*)y)[at] = v;
    else
      ((u16*)y)[at] = float_to_bf16(v);
  };
  const auto store = [&](int tile, int my_pair, int my_row, const float* sum) {
    const int row = tile * 16 + my_row;
    const float row_factor = row_scale && row < rows ? row_scale[row] : 1.f;
    float factors[2];
    load_shared_pair(factors_at + my_pair * 8, factors);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int column = 2 * my_pair + i;
      const float v = sum[i] * factors[i] * row_factor;
      if constexpr (RESULT == GATED) {
        const float up = __shfl_xor_sync(~0u, v, 8);  // 8 rows further
        if (column >= columns || my_row >= 8) continue;
        const float gated = silu(v) * up;
        if (y) store_element(column, tile * 8 + my_row, gated);
        products.store_element(column, tile * 8 + my_row, float_to_bf16(gated));
      } else if (column < columns && row < rows) {
        store_element(column, row, v);
      }
    }
  };

  for (int t = 0; t < my_tiles; t++) {
    float acc[BLOCKS][4] = {};
    const u32 slot = t % ST, stage = my_ring + slot * STAGE;
    barrier_wait(my_barriers + slot * 8, t / ST & 1);
#pragma unroll
    for (int i = 0; i < XM; i++)
      multiply_columns<F>(acc, load_record<F>(stage + i * BYTES, lane), b[i]);
    __syncwarp();
    if (lane == 0) fill(t + ST);

    // Sum of the warps, in their order. The array alternates, so that one barrier is enough.
    const u32 sums = sums_at + (t & 1) * (W * SUM_BYTES);
    u32 thread;  // read anew: registers are too few to hold what follows from it
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    const u32 mine =
        sums + (thread >> 5) * SUM_BYTES + (thread & 3) * PAIR_BYTES + (thread >> 2 & 7) * 8;
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
      store_shared_pair(mine + n * 4 * PAIR_BYTES, acc[n]);
      store_shared_pair(mine + n * 4 * PAIR_BYTES + 64, acc[n] + 2);
    }
    __syncthreads();
    if (thread / ELEMENTS == t % TURNS) {
      const int my_pair = thread % ELEMENTS >> 4, my_row = thread & 15;
      float sum[2] = {0.f, 0.f};
#pragma unroll
      for (int i = 0; i < W; i++) {
        float part[2];
        load_shared_pair(sums + i * SUM_BYTES + my_pair * PAIR_BYTES + my_row * 8, part);
        sum[0] += part[0];
        sum[1] += part[1];
      }
      store(blockIdx.x + t * gridDim.x, my_pair, my_row, sum);
    }
  }
  if (beside) wait_for_previous_kernels();
}

}  // namespace ninfer

#endif
