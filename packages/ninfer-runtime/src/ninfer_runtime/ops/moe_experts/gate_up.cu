// Gates and up matrices of a mixture of experts for few tokens: what the down matrices get. Each expert
// that is needed is read once.
#include "ninfer/expert_pairs.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/residual_sums.cuh"

namespace ninfer {

// F, FS: formats of the experts and of the shared one. W: warps. KC: records of each matrix in a stage.
// ST: stages. The first `shared_blocks` blocks compute the shared expert.
template <int F, int FS, int W, int KC, int ST>
__global__ __launch_bounds__(W * 32, 1) void moe_gate_up_kernel(
    const u8* x, const float* x_factors, const u8* shared_x, const float* shared_x_factors,
    u32 row_bytes, u32 record_bytes, u32 half_bytes, const float* squares, int square_count,
    float inverse_size, float eps, float norm_scale, float shared_norm_scale,
    const int* chosen, const u8* __restrict__ bank, const float* __restrict__ bank_scale,
    const u8* __restrict__ shared_bank, const float* __restrict__ shared_bank_scale, u16* products,
    float* product_factors, u16* shared_products, float* shared_product_factors, int tokens,
    int per_token, int experts, int records, int shared_records, int inner, int shared_inner,
    int keep_bf16, int shared_keep_bf16, int most_groups, int shared_blocks) {
  constexpr int BYTES = RecordShape<F>::BYTES, SHARED_BYTES = RecordShape<FS>::BYTES;
  constexpr int STAGE = 2 * larger_of(KC * BYTES, SHARED_BYTES);
  constexpr int SHARED_KC = STAGE / 2 / SHARED_BYTES;
  const int lane = threadIdx.x & 31, warp = warp_index(), block = blockIdx.x;
  const DeferredNorm norm = {squares, square_count, inverse_size, eps};

  // Shared memory: barriers, rings, groups.
  u8* const groups_memory = dynamic_shared + BARRIERS + W * ST * STAGE;
  const u32 shared = shared_address(dynamic_shared);
  WarpRing<ST, STAGE> ring(shared + BARRIERS + warp * (ST * STAGE), shared + warp * (ST * 8), lane);
  // Behind the barriers of the rings: factors of up to 8 tokens.
  static_assert(W * ST * 8 + COLUMNS * 4 <= BARRIERS, "room behind the barriers");
  float* const few_factors = (float*)(dynamic_shared + BARRIERS) - COLUMNS;
  const bool few = tokens <= COLUMNS;
  const auto find_factors = [&](const float* factors, float scale) {
    if (!few) return;
    for (int t = warp; t < tokens; t += W) {
      const float factor = squares ? norm.factor(t, lane, scale) : factors[t];
      if (lane == 0) few_factors[t] = factor;
    }
  };
  const auto units_of = [&](const Groups& groups, u32 place, u32 blocks, u32 total, int pairs,
                            int of_tokens) {
    const u32 index = place * W + warp, warps = blocks * W;
    return PairUnits{(int)(index * total / warps), (int)((index + 1) * total / warps), pairs,
                     of_tokens, tokens, &groups};
  };
  const auto rows_of = [&](const u8* from, const float* factors) {
    return Fragments{from, row_bytes, record_bytes, half_bytes, few ? few_factors : factors};
  };

  if (block < shared_blocks) {
    const Groups none(groups_memory, most_groups, experts);
    const int of_tokens = (tokens + COLUMNS - 1) / COLUMNS, pairs = shared_inner / 16;
    PairStream<FS, SHARED_KC, ST, STAGE> stream(
        ring, {shared_bank, shared_bank_scale, shared_records},
        units_of(none, block, shared_blocks, pairs * of_tokens, pairs, of_tokens));
    stream.start();
    wait_for_previous_kernels();
    let_next_kernel_start();
    find_factors(shared_x_factors, shared_norm_scale);
    __syncthreads();
    const Products target = {shared_products, shared_product_factors, shared_inner,
                             shared_keep_bf16};
    multiply_pairs(stream, rows_of(shared_x, shared_x_factors), target, 1, lane);
    return;
  }
  wait_for_previous_kernels();
  let_next_kernel_start();
  Groups groups(groups_memory, most_groups, experts);
  groups.find<W * 32>([&](int slot) { return __ldcg(chosen + slot); }, tokens, per_token, experts);
  const int pairs = inner / 16;
  PairStream<F, KC, ST, STAGE> stream(
      ring, {bank, bank_scale, records},
      units_of(groups, block - shared_blocks, gridDim.x - shared_blocks, *groups.total * pairs,
               pairs, 0));
  stream.start();
  find_factors(x_factors, norm_scale);
  __syncthreads();
  const Products target = {products, product_factors, inner, keep_bf16};
  multiply_pairs(stream, rows_of(x, x_factors), target, per_token, lane);
}

}  // namespace ninfer
