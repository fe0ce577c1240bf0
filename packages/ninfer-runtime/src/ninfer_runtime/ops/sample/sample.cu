// The sampler in two launches: the best candidates of each tile of the vocabulary, then one block a
// row that merges them and draws.
#include "ninfer/elements.cuh"
#include "ninfer/launch_order.cuh"

namespace ninfer {

constexpr int THREADS = 256;
constexpr int PER_THREAD = 16;  // tokens
constexpr int TILE = THREADS * PER_THREAD;
constexpr int CANDIDATES = 20;  // of a row at most: the contract

// A token and its value as one number: larger is better, among equal values the lower id. 0 is
// none.
NINFER_DEVICE u64 rank_of(float value, u32 token) {
  const u32 bits = __float_as_uint(value + 0.f);  // -0 equals +0
  const u32 ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return (u64)ordered << 32 | (u32)~token;
}
NINFER_DEVICE u32 token_of(u64 rank) { return ~(u32)rank; }
NINFER_DEVICE float value_of(u64 rank) {
  const u32 ordered = (u32)(rank >> 32);
  return __uint_as_float(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered);
}

NINFER_DEVICE u64 larger(u64 a, u64 b) { return a > b ? a : b; }

NINFER_DEVICE u64 warp_largest(u64 x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x = larger(x, __shfl_xor_sync(~0u, x, d));
  return x;
}

// The `count` best of what the threads of a block hold, best first, into `best`; 0 where there are
// fewer. `held` loses them.
template <int N>
NINFER_DEVICE void take_best(u64 (&held)[N], u64* best, int count) {
  __shared__ u64 of_warp[2][THREADS / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u64 own = 0;
#pragma unroll
  for (int i = 0; i < N; i++) own = larger(own, held[i]);
  for (int c = 0; c < count; c++) {
    const u64 warp_best = warp_largest(own);
    if (lane == 0) of_warp[c % 2][warp] = warp_best;
    __syncthreads();
    u64 winner = 0;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) winner = larger(winner, of_warp[c % 2][i]);
    if (threadIdx.x == 0) best[c] = winner;
    if (winner != 0 && own == winner) {
      own = 0;
#pragma unroll
      for (int i = 0; i < N; i++) {
        if (held[i] == winner) held[i] = 0;
        own = larger(own, held[i]);
      }
    }
  }
  __syncthreads();
}

NINFER_DEVICE int candidates_of(int top_k) {
  return top_k > 0 && top_k < CANDIDATES ? top_k : CANDIDATES;
}

// Blocks: [row][tile]. `broken` [row][tile]: whether a logit is not finite.
template <class X>
__global__ __launch_bounds__(THREADS) void sample_candidates_kernel(
    const X* logits, i64 row_stride, const float* temperatures, const int* top_ks,
    const float* presences, const float* frequencies, const int* counts_rows, const int* mask_rows,
    const int* counts, const u32* masks, u64* candidates, int* broken, u32 vocabulary, u32 words,
    u32 public_tokens, u32 tiles) {
  wait_for_previous_kernels();
  let_next_kernel_start();
  const u32 row = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  const int counts_row = counts_rows[row], mask_row = mask_rows[row];
  const float presence = presences[row], frequency = frequencies[row];
  const int* count = counts + (i64)counts_row * vocabulary;
  const u32* mask = masks + (i64)mask_row * words;
  u64 held[PER_THREAD];
  bool bad = false;
#pragma unroll
  for (int i = 0; i < PER_THREAD; i++) {
    const u32 token = tile * TILE + i * THREADS + threadIdx.x;
    held[i] = 0;
    if (token >= public_tokens) continue;
    float x = to_float(logits[row * row_stride + token]);
    bad |= (__float_as_uint(x) & 0x7f800000u) == 0x7f800000u;
    if (counts_row >= 0 && (presence != 0.f || frequency != 0.f)) {
      const int c = count[token];
      // Each product and difference is rounded, as in the reference.
      x = __fsub_rn(__fsub_rn(x, c > 0 ? presence : 0.f), __fmul_rn(frequency, (float)c));
    }
    if (mask_row < 0 || mask[token / 32] >> (token % 32) & 1) held[i] = rank_of(x, token);
  }
  const int any_bad = __syncthreads_or(bad);
  if (threadIdx.x == 0) broken[blockIdx.x] = any_bad;
  const int wanted = temperatures[row] > 0.f ? candidates_of(top_ks[row]) : 1;
  u64* best = candidates + (i64)blockIdx.x * CANDIDATES;
  take_best(held, best, wanted);
  if (threadIdx.x >= wanted && threadIdx.x < CANDIDATES) best[threadIdx.x] = 0;
}

NINFER_DEVICE u64 mixed(u64 x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

// A multiple of 2^-24 in [0, 1) that depends on nothing but its arguments.
NINFER_DEVICE float uniform(u64 seed, u32 position, u32 purpose) {
  u64 k = mixed(seed ^ (u64)position * 0xD1B54A32D192ED03ull);
  k = mixed(k ^ (u64)purpose << 21);
  return (float)(u32)(k >> 40) * 5.9604644775390625e-8f;
}

// The token that a number in [0, 1) falls on; `rank` holds the candidates, best first. Uses up
// `weight`.
NINFER_DEVICE u32 drawn(const u64* rank, float* weight, int count, float min_p, float top_p,
                        float u) {
  const float least = __fmul_rn(min_p, weight[0]);
  int above = 0, within = 1, index = 0;
  while (above < count && weight[above] >= least) above++;
  for (int i = 1; i < count; i++) weight[i] = __fadd_rn(weight[i - 1], weight[i]);
  // From here on the weights are cumulative.
  const float mass = __fmul_rn(top_p, weight[count - 1]);
  while (within <= count && weight[within - 1] < mass) within++;
  const int kept = max(1, min(min(above, within), count));
  const float goal = __fmul_rn(u, weight[kept - 1]);
  while (index < kept - 1 && weight[index] <= goal) index++;
  return token_of(rank[index]);
}

// One block a row.
template <int N>
__global__ __launch_bounds__(THREADS) void sample_draw_kernel(
    const u64* candidates, const int* broken, const float* temperatures, const int* top_ks,
    const float* top_ps, const float* min_ps, const u64* seeds, const int* positions,
    const int* purposes, int* out, u32 tiles) {
  __shared__ u64 rank[CANDIDATES];
  __shared__ float weight[CANDIDATES];
  wait_for_previous_kernels();
  let_next_kernel_start();
  const u32 row = blockIdx.x;
  u64 held[N];
#pragma unroll
  for (int i = 0; i < N; i++) {
    const u32 index = i * THREADS + threadIdx.x;
    held[i] = index < tiles * CANDIDATES ? candidates[(i64)row * tiles * CANDIDATES + index] : 0;
  }
  int bad = 0;
  for (u32 tile = threadIdx.x; tile < tiles; tile += THREADS) bad |= broken[row * tiles + tile];
  bad = __syncthreads_or(bad);
  const float temperature = temperatures[row];
  const int wanted = temperature > 0.f ? candidates_of(top_ks[row]) : 1;
  take_best(held, rank, wanted);
  if (temperature > 0.f && threadIdx.x < wanted && rank[threadIdx.x] != 0) {
    const float exponent =
        __fdiv_rn(__fsub_rn(value_of(rank[threadIdx.x]), value_of(rank[0])), temperature);
    // In double precision, as the reference, because float functions differ in their last bit.
    weight[threadIdx.x] = (float)exp((double)exponent);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  int count = 0;
  while (count < wanted && rank[count] != 0) count++;
  if (bad || count == 0)
    out[row] = -1;
  else if (temperature > 0.f)
    out[row] = drawn(rank, weight, count, min_ps[row], top_ps[row],
                     uniform(seeds[row], positions[row], purposes[row]));
  else
    out[row] = token_of(rank[0]);
}

}  // namespace ninfer
