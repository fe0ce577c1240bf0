// The sampler in two launches: the best token of each tile of the vocabulary, then one block a row
// that looks for the other candidates in the best tiles alone, and draws.
#include "ninfer/elements.cuh"
#include "ninfer/launch_order.cuh"

namespace ninfer {

constexpr int TILE = 1024;       // tokens
constexpr int TILE_THREADS = 128;
constexpr int ROW_THREADS = 1024;
constexpr int CANDIDATES = 20;  // of a row at most: the contract
constexpr int MAX_TILES = 1024;
constexpr u64 BROKEN = ~0ull;  // instead of a rank: a logit is not finite

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

// The largest over a block, in all threads; `of_warp` has a place for each warp.
template <int THREADS>
NINFER_DEVICE u64 block_largest(u64 x, u64* of_warp) {
  x = warp_largest(x);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < THREADS / 32 ? of_warp[threadIdx.x % 32] : 0;
  return warp_largest(x);
}

// The logits of a row with what is taken from them.
template <class X>
struct Row {
  const X* logits;
  float presence, frequency;
  const int* count;  // null without penalties
  const u32* mask;   // null if every token is allowed
  u32 tokens;

  NINFER_DEVICE Row(const X* logits, float presence, float frequency, const int* counts,
                    int counts_row, const u32* masks, int mask_row, u32 vocabulary, u32 words,
                    u32 tokens)
      : logits(logits), presence(presence), frequency(frequency), tokens(tokens) {
    const bool counted = counts_row >= 0 && (presence != 0.f || frequency != 0.f);
    count = counted ? counts + (i64)counts_row * vocabulary : nullptr;
    mask = mask_row >= 0 ? masks + (i64)mask_row * words : nullptr;
  }

  NINFER_DEVICE float load(u32 token) const {
    return token < tokens ? to_float(logits[token]) : 0.f;
  }

  // The rank of a token whose logit is x.
  NINFER_DEVICE u64 rank(u32 token, float x) const {
    if (token >= tokens) return 0;
    if ((__float_as_uint(x) & 0x7f800000u) == 0x7f800000u) return BROKEN;
    if (count) {
      const int c = count[token];
      // Each product and difference is rounded, as in the reference.
      x = __fsub_rn(__fsub_rn(x, c > 0 ? presence : 0.f), __fmul_rn(frequency, (float)c));
    }
    if (mask && !(mask[token / 32] >> (token % 32) & 1)) return 0;
    return rank_of(x, token);
  }
};

// Blocks: [row][tile], from `first_row` on. The best of a tile; `BROKEN` if one of its logits is not
// finite.
template <class X>
__global__ __launch_bounds__(TILE_THREADS, 8) void sample_tiles_kernel(
    const X* logits, i64 row_stride, const float* presences, const float* frequencies,
    const int* counts_rows, const int* mask_rows, const int* counts, const u32* masks, u64* best,
    u32 vocabulary, u32 words, u32 public_tokens, u32 tiles, u32 first_row) {
  __shared__ u64 of_warp[TILE_THREADS / 32];
  wait_for_previous_kernels();
  let_next_kernel_start();
  const u32 r = first_row + blockIdx.x / tiles, tile = blockIdx.x % tiles;
  const Row<X> row(logits + r * row_stride, presences[r], frequencies[r], counts, counts_rows[r],
                   masks, mask_rows[r], vocabulary, words, public_tokens);
  const u32 first = tile * TILE + threadIdx.x;
  float logit[TILE / TILE_THREADS];
#pragma unroll
  for (int i = 0; i < TILE / TILE_THREADS; i++) logit[i] = row.load(first + i * TILE_THREADS);
  u64 own = 0;
#pragma unroll
  for (int i = 0; i < TILE / TILE_THREADS; i++)
    own = larger(own, row.rank(first + i * TILE_THREADS, logit[i]));
  own = block_largest<TILE_THREADS>(own, of_warp);
  if (threadIdx.x == 0) best[blockIdx.x] = own;
}

NINFER_DEVICE int candidates_of(int top_k) {
  return top_k > 0 && top_k < CANDIDATES ? top_k : CANDIDATES;
}

// Calls place(p, i) for those of `count` different numbers that fewer than `wanted` are larger than:
// p of them. By the whole block; `larger_ones` has ROW_THREADS zeros and gets others.
template <class Place>
NINFER_DEVICE void for_the_best(const u64* numbers, int count, int wanted, int* larger_ones,
                                Place place) {
  const int width = (count + 31) / 32 * 32, parts = ROW_THREADS / width;
  const int i = threadIdx.x % width, part = threadIdx.x / width;
  if (i < count && part < parts) {
    const u64 own = numbers[i];
    const int begin = part * count / parts, end = (part + 1) * count / parts;
    int above = 0;
    for (int j = begin; j < end; j++) above += numbers[j] > own;
    if (parts > 1) atomicAdd(larger_ones + i, above);
    else larger_ones[i] = above;
  }
  __syncthreads();
  if (threadIdx.x < count && larger_ones[threadIdx.x] < wanted)
    place(larger_ones[threadIdx.x], threadIdx.x);
  __syncthreads();
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

// Which of `count` candidates a number in [0, 1) falls on; by one warp, lane i holds the weight of
// the i-th, which no later one exceeds.
NINFER_DEVICE int drawn(float weight, int count, float min_p, float top_p, float u) {
  const int lane = threadIdx.x % 32;
  const auto number_of = [](bool condition) { return __popc(__ballot_sync(~0u, condition)); };
  float sum = __shfl_sync(~0u, weight, 0), mass = sum;  // mass: of the candidates up to this one
#pragma unroll
  for (int i = 1; i < CANDIDATES; i++) {
    const float next = __shfl_sync(~0u, weight, i);
    if (i < count) sum = __fadd_rn(sum, next);
    if (lane == i) mass = sum;
  }
  const float least = __fmul_rn(min_p, __shfl_sync(~0u, weight, 0)), most = __fmul_rn(top_p, sum);
  const int above = number_of(lane < count && weight >= least);
  const int within = 1 + number_of(lane < count && mass < most);
  const int kept = max(1, min(min(above, within), count));
  const float goal = __fmul_rn(u, __shfl_sync(~0u, mass, kept - 1));
  return number_of(lane < kept - 1 && mass <= goal);
}

// One block a row. `found` [row][room]: for what the best tiles hold.
template <class X>
__global__ __launch_bounds__(ROW_THREADS, 1) void sample_rows_kernel(
    const X* logits, i64 row_stride, const float* temperatures, const int* top_ks,
    const float* top_ps, const float* min_ps, const float* presences, const float* frequencies,
    const u64* seeds, const int* positions, const int* purposes, const int* counts_rows,
    const int* mask_rows, const int* counts, const u32* masks, const u64* best, u64* found,
    int* out, u32 vocabulary, u32 words, u32 public_tokens, u32 tiles, u32 first_row, u32 room) {
  __shared__ u64 of_tile[MAX_TILES], of_warp[2][ROW_THREADS / 32], rank[CANDIDATES];
  __shared__ int larger_ones[ROW_THREADS], tile_of[CANDIDATES], count_found;
  wait_for_previous_kernels();
  let_next_kernel_start();
  const u32 r = first_row + blockIdx.x;
  const int thread = threadIdx.x;
  const float temperature = temperatures[r];
  const u64 own = thread < tiles ? best[blockIdx.x * tiles + thread] : 0;
  of_tile[thread] = own;
  larger_ones[thread] = 0;
  if (thread == 0) count_found = 0;
  const u64 largest = block_largest<ROW_THREADS>(own, of_warp[0]);
  if (largest == BROKEN || largest == 0 || temperature <= 0.f) {
    if (thread == 0) out[r] = largest == BROKEN || largest == 0 ? -1 : token_of(largest);
    return;
  }

  // A candidate is at least as good as the last of the best tiles' best, and lies in one of them.
  const int wanted = candidates_of(top_ks[r]), filled = __syncthreads_count(own != 0);
  const int best_tiles = min(wanted, filled);
  for_the_best(of_tile, tiles, best_tiles, larger_ones,
               [&](int place, int i) { tile_of[place] = i; });
  const u64 least = best_tiles < wanted ? 1 : of_tile[tile_of[best_tiles - 1]];
  const Row<X> row(logits + r * row_stride, presences[r], frequencies[r], counts, counts_rows[r],
                   masks, mask_rows[r], vocabulary, words, public_tokens);
  u64* const list = found + (i64)blockIdx.x * room;
  float logit[CANDIDATES];
#pragma unroll
  for (int t = 0; t < CANDIDATES; t++)
    logit[t] = t < best_tiles ? row.load(tile_of[t] * TILE + thread) : 0.f;
  __syncthreads();  // `of_tile` is read no more
#pragma unroll
  for (int t = 0; t < CANDIDATES; t++) {
    if (t >= best_tiles) break;
    const u64 x = row.rank(tile_of[t] * TILE + thread, logit[t]);
    if (x < least) continue;
    const int place = atomicAdd(&count_found, 1);
    list[place] = x;
    if (place < ROW_THREADS) of_tile[place] = x;
  }
  larger_ones[thread] = 0;
  __syncthreads();
  const int candidates = count_found, count = min(candidates, wanted);
  if (candidates <= ROW_THREADS) {
    for_the_best(of_tile, candidates, count, larger_ones,
                 [&](int place, int i) { rank[place] = of_tile[i]; });
  } else {  // many equal values
    u64 before = BROKEN;
    for (int c = 0; c < count; c++) {
      u64 next = 0;
      for (int i = thread; i < candidates; i += ROW_THREADS)
        if (list[i] < before) next = larger(next, list[i]);
      before = block_largest<ROW_THREADS>(next, of_warp[c % 2]);
      if (thread == 0) rank[c] = before;
    }
    __syncthreads();
  }
  if (thread >= 32) return;
  float weight = 0.f;
  if (thread < count) {
    const float exponent =
        __fdiv_rn(__fsub_rn(value_of(rank[thread]), value_of(rank[0])), temperature);
    // In double precision, as the reference, because float functions differ in their last bit.
    weight = (float)exp((double)exponent);
  }
  const float u = uniform(seeds[r], positions[r], purposes[r]);
  const int index = drawn(weight, count, min_ps[r], top_ps[r], u);
  if (thread == 0) out[r] = token_of(rank[index]);
}

}  // namespace ninfer
