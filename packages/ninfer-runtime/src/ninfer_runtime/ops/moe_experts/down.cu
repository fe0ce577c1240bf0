// Down matrices of a mixture of experts for few tokens, and the sum of what each token gets. Each expert
// that is needed is read once.
#include "ninfer/expert_groups.cuh"
#include "ninfer/launch_order.cuh"
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
      load(0);
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
#pragma unroll
          for (int i = 0; i < KC; i++)
            multiply_record<F>(acc, load_record<F>(stage + i * BYTES, lane), b[i]);
        } else {
#pragma unroll
          for (int i = 0; i < KC; i++)
            if (i < valid) {
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
        load(c + 1);
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
// of the shared expert, then the groups of the others.
template <int F, int FS, int W, int KC, int ST, class O>
__global__ __launch_bounds__(W * 32, 1) void moe_down_kernel(
    const int* chosen, const float* weights, const float* shared_weights,
    const u8* __restrict__ bank, const float* __restrict__ bank_scale,
    const u8* __restrict__ shared_bank, const float* __restrict__ shared_bank_scale, u16* products,
    float* product_factors, u16* shared_products, float* shared_product_factors, O* out,
    i64 out_stride, int tokens, int per_token, int experts, int records, int shared_records,
    int inner, int shared_inner, int most_groups) {
  constexpr int BYTES = RecordShape<F>::BYTES, SHARED_BYTES = RecordShape<FS>::BYTES;
  constexpr int STAGE = larger_of(KC * BYTES, SHARED_BYTES);
  constexpr int SHARED_KC = STAGE / SHARED_BYTES;
  const int lane = threadIdx.x & 31, warp = warp_index();
  const int tile = blockIdx.x, tiles = gridDim.x, slots = tokens * per_token;
  const int of_tokens = (tokens + COLUMNS - 1) / COLUMNS;
  const int steps = inner / 16, shared_steps = shared_inner / 16;

  // Shared memory: barriers, rings, results, what they count, groups.
  float* const partial = (float*)(dynamic_shared + BARRIERS + W * ST * STAGE);
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
  const bool has_shared = warp < of_tokens;
  DownStream<FS, SHARED_KC, ST, Ring> of_shared(
      ring, {shared_bank, shared_bank_scale, shared_records}, nullptr, tokens, tile, tiles,
      warp, of_tokens, W);
  // Warps go on where the others stopped.
  const int begin = (warp - of_tokens % W + W) % W;
  DownStream<F, KC, ST, Ring> of_experts(ring, {bank, bank_scale, records}, &groups, tokens, tile,
                                         tiles, begin, *groups.total, W);
  if (has_shared)
    of_shared.start();
  else
    of_experts.start();
  let_next_kernel_start();
  wait_for_previous_kernels();
  if (has_shared) {
    const Fragments x = {(const u8*)shared_products, (u32)shared_inner * 2, 128, 64, nullptr};
    of_shared.run(x, shared_product_factors, shared_steps, shared_partial, lane);
    of_experts.start();
  }
  const Fragments x = {(const u8*)products, (u32)inner * 2, 128, 64, nullptr};
  of_experts.run(x, product_factors, steps, partial, lane);
  __syncthreads();
  const auto sum_of = [&](int token, int row) {
    float sum = 0.f;
    for (int a = 0; a < per_token; a++) {
      const int slot = token * per_token + a;
      sum = fmaf(counts[slot], partial[slot * 16 + row], sum);
    }
    return fmaf(counts[slots + token], shared_partial[token * 16 + row], sum);
  };
  for (int i = threadIdx.x; i < tokens * 16; i += W * 32)
    out[i / 16 * out_stride + tile * 16 + i % 16] = from_float<O>(sum_of(i / 16, i % 16));
}

}  // namespace ninfer
