// The sampler in two launches: the best token of each tile of the vocabulary, then one block a row
// that looks for the other candidates in the best tiles alone, and draws.
#include "ninfer/elements.cuh"
#include "ninfer/launch_order.cuh"

namespace ninfer {

constexpr int TILE = 256;  // tokens, of one warp
constexpr int TILES_THREADS = 256;
constexpr int ROW_THREADS = 1024, ROW_WARPS = ROW_THREADS / 32;  // at most as many tiles as threads
constexpr int CANDIDATES = 20;                                   // of a row at most: the contract
constexpr int LIST = 256;  // candidates that are ranked at once
constexpr u32 BROKEN = ~0u;  // instead of a key: a logit is not finite

// A value as a number of the same order. 0 is none.
NINFER_DEVICE u32 key_of(float value) {
  const u32 bits = __float_as_uint(value + 0.f);  // -0 equals +0
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// A token and its key as one number: larger is better, among equal values the lower id. 0 is none.
NINFER_DEVICE u64 rank_of(u32 key, u32 token) { return key ? (u64)key << 32 | (u32)~token : 0; }
NINFER_DEVICE u32 key_of_rank(u64 rank) { return (u32)(rank >> 32); }
NINFER_DEVICE u32 token_of(u64 rank) { return ~(u32)rank; }
NINFER_DEVICE float value_of(u64 rank) {
  const u32 key = key_of_rank(rank);
  return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

NINFER_DEVICE u64 larger(u64 a, u64 b) { return a > b ? a : b; }

NINFER_DEVICE u64 warp_largest(u64 x) {
  const u32 upper = __reduce_max_sync(~0u, (u32)(x >> 32));
  const u32 lower = __reduce_max_sync(~0u, (u32)(x >> 32) == upper ? (u32)x : 0u);
  return (u64)upper << 32 | lower;
}

// What `from` holds for N tokens, all loads under way together; anything for tokens from `end` on.
template <int N, class T>
NINFER_DEVICE void load_tokens(const T* from, int end, const int (&token)[N], T (&to)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) to[i] = from[min(token[i], end - 1)];
}

// What is taken from the logits of a row.
struct Penalties {
  float presence, frequency;
  const int* count;  // null without penalties
  const u32* mask;   // null if every token is allowed
  int tokens;

  NINFER_DEVICE Penalties(float presence, float frequency, const int* counts, int counts_row,
                          const u32* masks, int mask_row, u32 vocabulary, u32 words, int tokens)
      : presence(presence), frequency(frequency), tokens(tokens) {
    const bool counted = counts_row >= 0 && (presence != 0.f || frequency != 0.f);
    count = counted ? counts + (i64)counts_row * vocabulary : nullptr;
    mask = mask_row >= 0 ? masks + (i64)mask_row * words : nullptr;
  }

  // The keys of N tokens with logits x; those beyond the last are none.
  template <int N>
  NINFER_DEVICE void keys(const int (&token)[N], const float (&x)[N], u32 (&key)[N]) const {
    if (count) {
      int c[N];
      load_tokens(count, tokens, token, c);
      // Each product and difference is rounded, as in the reference.
#pragma unroll
      for (int i = 0; i < N; i++)
        key[i] = key_of(__fsub_rn(__fsub_rn(x[i], c[i] > 0 ? presence : 0.f),
                                  __fmul_rn(frequency, (float)c[i])));
    } else {
#pragma unroll
      for (int i = 0; i < N; i++) key[i] = key_of(x[i]);
    }
    if (mask) {
      u32 word[N];
#pragma unroll
      for (int i = 0; i < N; i++) word[i] = mask[(u32)min(token[i], tokens - 1) / 32];
#pragma unroll
      for (int i = 0; i < N; i++) key[i] = word[i] >> ((u32)token[i] % 32) & 1 ? key[i] : 0;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
      const bool finite = (__float_as_uint(x[i]) & 0x7f800000u) != 0x7f800000u;
      key[i] = token[i] >= tokens ? 0 : finite ? key[i] : BROKEN;
    }
  }
};

// One warp for each [row][tile]. The best of a tile; its key is `BROKEN` if one of its logits is not
// finite.
__global__ __launch_bounds__(TILES_THREADS, 4) void sample_tiles_kernel(
    const float* logits, i64 row_stride, const float* presences, const float* frequencies,
    const int* counts_rows, const int* mask_rows, const int* counts, const u32* masks, u64* best,
    u32 vocabulary, u32 words, u32 public_tokens, u32 tiles, u32 rows) {
  constexpr int EACH = TILE / 32;
  let_next_kernel_start();
  const u32 place = blockIdx.x * (TILES_THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  const u32 r = place / tiles, tile = place % tiles;
  wait_for_previous_kernels();
  if (r >= rows) return;
  // Signed, so that all addresses are one register and constants.
  int token[EACH];
#pragma unroll
  for (int i = 0; i < EACH; i++) token[i] = (int)(tile * TILE + lane) + i * 32;
  float x[EACH];
  load_tokens(logits + r * row_stride, public_tokens, token, x);
  const Penalties penalties(presences[r], frequencies[r], counts, counts_rows[r], masks,
                            mask_rows[r], vocabulary, words, public_tokens);
  u32 key[EACH];
  penalties.keys(token, x, key);
  u32 own = 0, of_token = 0;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    if (key[i] > own) of_token = token[i];
    own = max(own, key[i]);
  }
  const u64 rank = warp_largest(rank_of(own, of_token));
  if (lane == 0) best[place] = rank;
}

NINFER_DEVICE int candidates_of(int top_k) {
  return top_k > 0 && top_k < CANDIDATES ? top_k : CANDIDATES;
}

// What the threads of a row's block share.
struct Shared {
  u64 list[LIST], of_warp[2][ROW_WARPS];
  int listed[2];  // zero when a list is begun
  u64 first, least;
};

// Writes the `wanted` best of N different ranks of each thread, those below `least` (which is not 0)
// left out, to `best` in order; returns how many there are. By the whole block.
template <int N>
NINFER_DEVICE int find_best(const u64 (&own)[N], u64 least, int wanted, u64* best, int& listed,
                            Shared& shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < N; i++) {
    if (own[i] < least) continue;
    const int place = atomicAdd(&listed, 1);
    if (place < LIST) shared.list[place] = own[i];
  }
  __syncthreads();
  const int number = listed;
  if (number <= LIST) {
#pragma unroll 1
    for (int i = warp; i < number; i += ROW_WARPS) {
      const u64 of_warp = shared.list[i];
      int above = 0;
#pragma unroll 1
      for (int j = 0; j < number; j += 32)
        above += __popc(__ballot_sync(~0u, j + lane < number && shared.list[j + lane] > of_warp));
      if (lane == 0 && above < wanted) best[above] = of_warp;
    }
  } else {  // many equal values: one after the other
    u64 before = ~0ull;
#pragma unroll 1
    for (int c = 0; c < wanted; c++) {
      u64 next = 0;
#pragma unroll
      for (int i = 0; i < N; i++)
        if (own[i] < before) next = larger(next, own[i]);
      next = warp_largest(next);
      if (lane == 0) shared.of_warp[c % 2][warp] = next;
      __syncthreads();
      before = warp_largest(shared.of_warp[c % 2][lane]);
      if (threadIdx.x == 0) best[c] = before;
    }
  }
  __syncthreads();
  return min(number, wanted);
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

// One block a row.
__global__ __launch_bounds__(ROW_THREADS, 1) void sample_rows_kernel(
    const float* logits, i64 row_stride, const float* temperatures, const int* top_ks,
    const float* top_ps, const float* min_ps, const float* presences, const float* frequencies,
    const u64* seeds, const int* positions, const int* purposes, const int* counts_rows,
    const int* mask_rows, const int* counts, const u32* masks, const u64* best_of_tiles, int* out,
    const int* returned_places, int* returned, u32 vocabulary, u32 words, u32 public_tokens,
    u32 tiles) {
  constexpr int EACH = CANDIDATES * TILE / ROW_THREADS;
  __shared__ Shared shared;
  __shared__ u64 best_tile[CANDIDATES], rank[CANDIDATES];
  let_next_kernel_start();
  const u32 r = blockIdx.x, thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  if (thread < 2) shared.listed[thread] = 0;
  if (thread == 0) shared.least = 1;
  wait_for_previous_kernels();
  const u32 begin = warp * tiles / ROW_WARPS, end = (warp + 1) * tiles / ROW_WARPS;
  const u64 own = begin + lane < end ? best_of_tiles[r * tiles + begin + lane] : 0;
  const float temperature = temperatures[r], min_p = min_ps[r], top_p = top_ps[r];
  const u64 seed = seeds[r];
  const u32 position = positions[r], purpose = purposes[r];
  const int wanted = candidates_of(top_ks[r]), returned_place = returned_places[r];
  const Penalties penalties(presences[r], frequencies[r], counts, counts_rows[r], masks,
                            mask_rows[r], vocabulary, words, public_tokens);
  const u64 of_warp = warp_largest(own);
  if (lane == 0) shared.of_warp[0][warp] = of_warp;
  __syncthreads();
  const int above = __popc(__ballot_sync(~0u, shared.of_warp[0][lane] > of_warp));
  if (lane == 0 && above == 0) shared.first = of_warp;
  if (lane == 0 && above == wanted - 1 && of_warp) shared.least = of_warp;
  __syncthreads();
  const u64 first = shared.first;
  const auto give = [=](int token) {
    out[r] = token;
    if (returned_place >= 0) returned[returned_place] = token;
  };
  const bool none = first == 0 || key_of_rank(first) == BROKEN;
  if (none || temperature <= 0.f) {
    if (thread == 0) give(none ? -1 : (int)token_of(first));
    return;
  }

  // A candidate is at least as good as the last of the best tiles' best, and lies in one of them.
  const u64 of_tile[] = {own};
  const int best_tiles =
      find_best(of_tile, shared.least, wanted, best_tile, shared.listed[0], shared);
  int token[EACH];
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int t = (i * ROW_THREADS + thread) / TILE;
    token[i] = t < best_tiles ? token_of(best_tile[t]) / TILE * TILE + thread % TILE : public_tokens;
  }
  float x[EACH];
  load_tokens(logits + r * row_stride, public_tokens, token, x);
  u32 key[EACH];
  penalties.keys(token, x, key);
  u64 own_ranks[EACH];
#pragma unroll
  for (int i = 0; i < EACH; i++) own_ranks[i] = rank_of(key[i], token[i]);
  const u64 least = best_tiles < wanted ? 1 : best_tile[wanted - 1];
  const int count = find_best(own_ranks, least, wanted, rank, shared.listed[1], shared);
  if (warp > 0) return;
  float weight = 0.f;
  if (lane < count) {
    const float exponent =
        __fdiv_rn(__fsub_rn(value_of(rank[lane]), value_of(rank[0])), temperature);
    // In double precision, as the reference, because float functions differ in their last bit.
    weight = (float)exp((double)exponent);
  }
  const int index = drawn(weight, count, min_p, top_p, uniform(seed, position, purpose));
  if (thread == 0) give((int)token_of(rank[index]));
}

}  // namespace ninfer
