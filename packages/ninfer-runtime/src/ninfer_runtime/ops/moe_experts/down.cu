// Down matrices of a mixture of experts for few tokens, and the sum of what each token gets. Each expert
// that is needed is read once.
#include "ninfer/expert_groups.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/residual_sums.cuh"
#include "ninfer/weight_record.cuh"

namespace ninfer {

// The products of groups with a row tile of a down matrix, by one warp. `partial`: [slot][16].
template <int F, int KC, int ST, class Ring>
struct DownStream {
  Ring& ring;
  Bank bank;
  const Groups* groups;  // null for the shared expert
  int tokens;
  int tile, tiles;         // row tile, and how many an expert has
  int begin, end, stride;  // groups of this warp
  int chunks, job, chunk;  // to be loaded next

  NINFER_DEVICE DownStream(Ring& ring, Bank bank, const Groups* groups, int tokens,
                           int tile, int tiles, int begin, int end, int stride)
      : ring(ring), bank(bank), groups(groups), tokens(tokens), tile(tile), tiles(tiles),
        begin(begin), end(end), stride(stride), job(begin), chunk(0) {
    chunks = (bank.records + KC - 1) / KC;
  }

  NINFER_DEVICE i64 row_tile(int group) const {
    return (i64)(groups ? groups->expert[group] : 0) * tiles + tile;
  }

  NINFER_DEVICE void fill(int stage) {
    u32 num_bytes = 0;
    const u8* source = nullptr;
    if (job < end) {
      constexpr int BYTES = RecordShape<F>::BYTES;
      num_bytes = min_int(KC, bank.records - chunk * KC) * BYTES;
      source = bank.data + ((u64)row_tile(job) * bank.records + chunk * KC) * BYTES;
    }
    ring.fill(stage, source, num_bytes);
    if (++chunk == chunks) {
      chunk = 0;
      job += stride;
    }
  }

  NINFER_DEVICE void start() {
    if (ring.fills()) {
#pragma unroll
      for (int i = 0; i < ST; i++) fill((ring.slot + i) % ST);
    }
    __syncwarp();
  }

  // `steps`: of 16 values of K, each with a factor in `all_factors` [slot][steps].
  template <bool COPY>
  NINFER_DEVICE void run(const Fragments& x, const float* all_factors, int steps, float* partial,
                         int lane) {
    constexpr int BYTES = RecordShape<F>::BYTES;
    const int g = lane >> 2, q = lane & 3;
    for (int group = begin; group < end; group += stride) {
      const int size = groups ? groups->size[group] : min_int(COLUMNS, tokens - group * COLUMNS);
      const auto slot_of = [&](int column) {
        const int c = min_int(column, size - 1);
        return groups ? (int)groups->slot[group * COLUMNS + c] : group * COLUMNS + c;
      };
      const int slot = slot_of(g);
      u32 b[KC][8];
      const auto load = [&](int c) {
#pragma unroll
        for (int i = 0; i < KC; i++)
          if (i < bank.records - c * KC) x.load(slot, c * KC + i, q, b[i]);
      };
      if constexpr (!COPY) load(0);
      // The largest of the factors belongs to the row; the others are made up for where they differ.
      const float* factors = all_factors + slot * steps;
      float largest = 1.f;
      for (int i = q; i < steps; i += 4) largest = fmaxf(largest, factors[i]);
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      const bool differ = __any_sync(~0u, largest != 1.f);

      float acc[4] = {0.f, 0.f, 0.f, 0.f};
      for (int c = 0; c < chunks; c++) {
        const int valid = bank.records - c * KC;
        const u32 stage = ring.wait();
        if (valid >= KC && !differ) {  // without conditions in between, records overlap
          // Sums of four groups take the registers of four records.
          constexpr int TOGETHER = COPY && RecordShape<F>::GROUPS == 4 ? 2 : KC;
#pragma unroll TOGETHER
          for (int i = 0; i < KC; i++) {
            if constexpr (COPY) x.load_copy(slot, c * KC + i, q, b[COPY ? 0 : i]);
            multiply_record<F>(acc, load_record<F>(stage + i * BYTES, lane), b[COPY ? 0 : i]);
          }
        } else {
#pragma unroll
          for (int i = 0; i < KC; i++)
            if (i < valid) {
              if constexpr (COPY) x.load_copy(slot, c * KC + i, q, b[i]);
#pragma unroll
              for (int s = 0; s < 4; s++) {
                const u32 half = float_to_f16(factors[(c * KC + i) * 4 + s] / largest);
                if (F == BF16 || !differ) continue;
                b[i][2 * s] = mul_f16x2(b[i][2 * s], half | half << 16);
                b[i][2 * s + 1] = mul_f16x2(b[i][2 * s + 1], half | half << 16);
              }
              multiply_record<F>(acc, load_record<F>(stage + i * BYTES, lane), b[i]);
            }
        }
        const int free = ring.release();
        if (ring.fills()) fill(free);
        if constexpr (!COPY) load(c + 1);
      }
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int column = 2 * q + (e & 1), row = g + 8 * (e >> 1);
        const float factor = __shfl_sync(~0u, largest, column * 4);
        if (column >= size) continue;
        float v = acc[e] * (record_factor<F>() * factor);
        if (bank.row_scale) v *= bank.row_scale[row_tile(group) * 16 + row];
        partial[slot_of(column) * 16 + row] = v;
      }
    }
  }
};

// A block computes 16 rows of the result for all tokens. Its warps take by turns the groups of tokens
// of the shared expert, then the groups of the others. ROOM: threads that the registers of an SM must
// suffice for. COPY: the products are copied to shared memory. The result goes to `out`, or with a
// `residual` and at most 8 tokens to what ResidualSums tells.
template <int F, int FS, int W, int KC, int ST, int ROOM, bool COPY, class O>
__global__ __launch_bounds__(ROOM, 1) void moe_down_kernel(
    const int* chosen, const float* weights, const float* shared_weights,
    const u8* __restrict__ bank, const float* __restrict__ bank_scale,
    const u8* __restrict__ shared_bank, const float* __restrict__ shared_bank_scale, u16* products,
    float* product_factors, u16* shared_products, float* shared_product_factors, O* out,
    i64 out_stride, u16* residual, const u16* norm_weight, float norm_offset, float* squares_out,
    u32* half, float* half_factor, u32* words, float* words_factor, int x_rows, int tokens,
    int per_token, int experts, int size, int records, int shared_records, int inner,
    int shared_inner, int most_groups) {
  constexpr int BYTES = RecordShape<F>::BYTES, SHARED_BYTES = RecordShape<FS>::BYTES;
  constexpr int STAGE = larger_of(KC * BYTES, SHARED_BYTES);
  constexpr int SHARED_KC = COPY ? 2 : STAGE / SHARED_BYTES;
  constexpr int PADDING = COPY ? 64 : 0;  // rows begin in different banks
  const int lane = threadIdx.x & 31, warp = warp_index();
  const int tile = blockIdx.x, tiles = gridDim.x, slots = tokens * per_token;
  const int of_tokens = (tokens + COLUMNS - 1) / COLUMNS;
  const int steps = inner / 16, shared_steps = shared_inner / 16;
  const int row_bytes = inner * 2 + PADDING, shared_row_bytes = shared_inner * 2 + PADDING;

  // With COPY there is one group of tokens, and all of its weights of up to 8 records are on their way at
  // once.
  constexpr int SHARED_STAGES = COPY ? 4 : ST, SHARED_STAGE = COPY ? 2 * SHARED_BYTES : STAGE;
  constexpr int SHARED_RING = COPY ? SHARED_STAGES * SHARED_STAGE : 0;

  // Shared memory: barriers, rings, products with their factors, results, what they count, groups.
  u8* const copy = dynamic_shared + BARRIERS + W * ST * STAGE + SHARED_RING;
  u8* const shared_copy = copy + (COPY ? slots * row_bytes : 0);
  float* const factors = (float*)(shared_copy + (COPY ? tokens * shared_row_bytes : 0));
  float* const shared_factors = factors + (COPY ? slots * steps : 0);
  float* const partial = shared_factors + (COPY ? tokens * shared_steps : 0);
  float* const shared_partial = partial + slots * 16;
  float* const counts = shared_partial + tokens * 16;  // of the experts, then of the shared one
  Groups groups((u8*)(counts + slots + tokens), most_groups, experts);
  const u32 shared = shared_address(dynamic_shared);
  WarpRing<ST, STAGE> ring(shared + BARRIERS + warp * (ST * STAGE), shared + warp * (ST * 8), lane);

  // The kernel before this one waited for the routing before it let this one start.
  for (int i = threadIdx.x; i < slots + tokens; i += W * 32)
    counts[i] = __ldcg(i < slots ? weights + i : shared_weights + (i - slots));
  groups.find<W * 32>([&](int slot) { return __ldcg(chosen + slot); }, tokens, per_token, experts);
  using Ring = WarpRing<ST, STAGE>;
  using SharedRing = WarpRing<SHARED_STAGES, SHARED_STAGE>;
  static_assert((W * ST + SHARED_STAGES) * 8 <= BARRIERS, "barriers");
  const bool has_own = COPY && warp == 0;  // no other warp prepares its barriers
  SharedRing own_ring(shared + BARRIERS + W * ST * STAGE, shared + W * ST * 8, has_own ? lane : 1);
  const auto shared_ring = [&]() -> SharedRing& {
    if constexpr (COPY)
      return own_ring;
    else
      return ring;
  };
  const bool has_shared = warp < of_tokens;
  DownStream<FS, SHARED_KC, SHARED_STAGES, SharedRing> of_shared(
      shared_ring(), {shared_bank, shared_bank_scale, shared_records}, nullptr, tokens, tile, tiles,
      warp, of_tokens, W);
  // Warps go on where the others stopped.
  const int begin = (warp - of_tokens % W + W) % W;
  DownStream<F, KC, ST, Ring> of_experts(ring, {bank, bank_scale, records}, &groups, tokens, tile,
                                         tiles, begin, *groups.total, W);
  if (has_shared) of_shared.start();
  if (COPY || !has_shared) of_experts.start();
  let_next_kernel_start();
  wait_for_previous_kernels();
  const ResidualSums sums = {residual, norm_weight, norm_offset, squares_out,
                             {half, half_factor, words, words_factor, x_rows}, size};
  const int my_token = threadIdx.x / 16, my_column = tile * 16 + threadIdx.x % 16;
  const bool adds = residual && my_token < tokens;
  ResidualSums::Before before = {};
  if (adds) before = sums.load(my_token, my_column);
  if constexpr (COPY) {
    constexpr int THREADS = W * 32;
    begin_copy<THREADS>(copy, products, slots, inner * 2, row_bytes);
    begin_copy<THREADS>(shared_copy, shared_products, tokens, shared_inner * 2, shared_row_bytes);
    begin_copy<THREADS>(factors, product_factors, 1, slots * steps * 4, 0);
    begin_copy<THREADS>(shared_factors, shared_product_factors, 1, tokens * shared_steps * 4, 0);
    finish_copies();
  }
  if (has_shared) {
    const Fragments x = {(const u8*)shared_products, (u32)shared_row_bytes, 128, 64, nullptr,
                         shared_address(shared_copy)};
    of_shared.template run<COPY>(x, COPY ? shared_factors : shared_product_factors, shared_steps,
                        shared_partial, lane);
    if (!COPY) of_experts.start();
  }
  const Fragments x = {(const u8*)products, (u32)row_bytes, 128, 64, nullptr, shared_address(copy)};
  of_experts.template run<COPY>(x, COPY ? factors : product_factors, steps, partial, lane);
  __syncthreads();
  const auto sum_of = [&](int token, int row) {
    float sum = 0.f;
    for (int a = 0; a < per_token; a++) {
      const int slot = token * per_token + a;
      sum = fmaf(counts[slot], partial[slot * 16 + row], sum);
    }
    return fmaf(counts[slots + token], shared_partial[token * 16 + row], sum);
  };
  if (residual) {
    if (adds) sums.store(my_token, my_column, before, sum_of(my_token, threadIdx.x % 16));
    return;
  }
  for (int i = threadIdx.x; i < tokens * 16; i += W * 32)
    out[i / 16 * out_stride + tile * 16 + i % 16] = from_float<O>(sum_of(i / 16, i % 16));
}

}  // namespace ninfer
