// Scores of the experts on tensor cores, and the choice of the best ones of each token.
#include "ninfer/cluster.cuh"
#include "ninfer/elements.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/mma.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

constexpr int WARPS = 8;
constexpr int ROWS = 16;            // experts of a block
constexpr int COLUMNS = 8;          // tokens of a product
constexpr int MAX_COLUMN_BLOCKS = 16;

// How many blocks of a column block are done. Zero before and after every launch.
__device__ u32 arrived[MAX_COLUMN_BLOCKS];

// Adds one and returns what was there: what the block stored is then seen by blocks that count later.
NINFER_DEVICE u32 count_arrival(u32* counter) {
  u32 before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

struct Choice {
  int tokens, experts, per_token;
  int* chosen;            // [T, A]
  float* weights;         // [T, A]
  float* shared_weights;  // [T]
};

// A number that is the larger, the larger the score; 1 for what is not a number.
NINFER_DEVICE u32 order_of(float score) {
  const u32 bits = __float_as_uint(score + 0.f);  // -0 equals +0
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 1;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
NINFER_DEVICE float score_of(u32 order) {
  return __uint_as_float(order >> 31 ? order & 0x7fffffffu : ~order);
}

// One warp chooses for one token; lane l looks at experts l, l + 32, ... and keeps the l-th choice.
// score(expert) is that of an expert, or behind them of the shared one.
template <int HELD, class Score>
NINFER_DEVICE void choose_experts(const Choice& c, int token, int lane, Score score) {
  u32 held[HELD];
  bool bad = false;
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    const int expert = i * 32 + lane;
    held[i] = 0;  // none
    if (expert < c.experts) held[i] = order_of(score(expert));
    bad |= held[i] == 1;
  }
  bad = __any_sync(~0u, bad);

  u32 my_order = 0, my_expert = 0;
  for (int a = 0; a < c.per_token; a++) {
    u32 best[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) best[i] = held[i];
#pragma unroll
    for (int d = HELD / 2; d > 0; d /= 2)
#pragma unroll
      for (int i = 0; i < d; i++) best[i] = max(best[i], best[i + d]);
    const u32 winner = __reduce_max_sync(~0u, best[0]);
    u32 expert = ~0u;
#pragma unroll
    for (int i = HELD - 1; i >= 0; i--)
      if (held[i] == winner) expert = i * 32 + lane;
    const u32 chosen = __reduce_min_sync(~0u, expert);
#pragma unroll
    for (int i = 0; i < HELD; i++)
      if (i * 32 + lane == chosen) held[i] = 0;
    if (lane == a) {
      my_order = winner;
      my_expert = chosen;
    }
  }

  const float mine = score_of(my_order), largest = __shfl_sync(~0u, mine, 0);
  const float exponential = lane < c.per_token ? expf(mine - largest) : 0.f;
  const float sum = warp_sum(exponential);
  if (lane < c.per_token) {
    const i64 at = (i64)token * c.per_token + lane;
    c.chosen[at] = my_expert;
    c.weights[at] = bad ? __uint_as_float(0x7fffffffu) : exponential / sum;
  }
  if (lane == 0) c.shared_weights[token] = 1.f / (1.f + expf(-score(c.experts)));
}

// A row tile of weights, one warp's part of K: CHUNKS chunks of 32 values. The order of values inside a
// product is free as long as both operands share it: a lane takes eight neighbouring ones of a row,
// two steps of the tensor cores.
template <int CHUNKS>
struct ScoreTile {
  uint4 a[CHUNKS][2];

  NINFER_DEVICE void load(const u16* weight, int first_row, int rows, int size, int part,
                          int lane) {
    const int g = lane >> 2, q = lane & 3;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
      const int k = (part * CHUNKS + i) * 32 + q * 8;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int row = first_row + g + 8 * h;
        a[i][h] = make_uint4(0, 0, 0, 0);
        if (row < rows && k < size) a[i][h] = *(const uint4*)(weight + (i64)row * size + k);
      }
    }
  }

  // Sums for the 8 tokens from `first_token` on: rows g, g + 8, tokens 2q, 2q + 1.
  NINFER_DEVICE void multiply(float* acc, const u16* x, i64 stride, int first_token, int tokens,
                              int size, int part, int lane) const {
    const int token = first_token + (lane >> 2), q = lane & 3;
    uint4 b[CHUNKS];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
      const int k = (part * CHUNKS + i) * 32 + q * 8;
      b[i] = make_uint4(0, 0, 0, 0);
      if (token < tokens && k < size) b[i] = load_global_16(x + token * stride + k);
    }
    float sum[4][4] = {};  // products that wait for one another less
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
      const u32 first[4] = {a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y};
      const u32 second[4] = {a[i][0].z, a[i][1].z, a[i][0].w, a[i][1].w};
      mma_16x8x16<true>(sum[2 * i % 4], first, b[i].x, b[i].y);
      mma_16x8x16<true>(sum[2 * i % 4 + 1], second, b[i].z, b[i].w);
    }
#pragma unroll
    for (int e = 0; e < 4; e++) acc[e] = (sum[0][e] + sum[1][e]) + (sum[2][e] + sum[3][e]);
  }
};

// The sums of one warp in shared memory: [token][row].
NINFER_DEVICE void leave_sums(float (*sums)[ROWS], const float* acc, int lane) {
#pragma unroll
  for (int e = 0; e < 4; e++)
    sums[2 * (lane & 3) + (e & 1)][(lane >> 2) + 8 * (e >> 1)] = acc[e];
}

// Blocks: [column block][row tile]; the 8 warps split K. `choose`: the last block of a column block
// chooses for its tokens. `scores`: [T, pitch].
template <int CHUNKS, int HELD>
__global__ __launch_bounds__(WARPS * 32, CHUNKS > 8 ? 1 : 2) void moe_scores_kernel(
    const u16* x, i64 x_stride, const u16* __restrict__ weight, int size, int tiles,
    int column_blocks, int choose, float* scores, int pitch, int tokens, int experts, int per_token,
    int* chosen, float* weights, float* shared_weights) {
  __shared__ float sums[2][WARPS][COLUMNS][ROWS];
  const Choice c = {tokens, experts, per_token, chosen, weights, shared_weights};
  const int lane = threadIdx.x & 31, warp = warp_index();
  const int tile = blockIdx.x % tiles, column_block = blockIdx.x / tiles;
  const int groups = (tokens + COLUMNS - 1) / COLUMNS;
  ScoreTile<CHUNKS> rows;
  rows.load(weight, tile * ROWS, experts + 1, size, warp, lane);
  wait_for_previous_kernels();
  let_next_kernel_start();

  int turn = 0;
  for (int group = column_block; group < groups; group += column_blocks, turn ^= 1) {
    float acc[4];
    rows.multiply(acc, x, x_stride, group * COLUMNS, tokens, size, warp, lane);
    leave_sums(sums[turn][warp], acc, lane);
    __syncthreads();
    const int column = threadIdx.x / ROWS, row = threadIdx.x % ROWS;
    const int token = group * COLUMNS + column;
    if (column < COLUMNS && token < tokens) {
      float v = 0.f;
#pragma unroll
      for (int w = 0; w < WARPS; w++) v += sums[turn][w][column][row];
      scores[(i64)token * pitch + tile * ROWS + row] = v;
    }
  }
  if (!choose) return;

  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    last = count_arrival(arrived + column_block) == tiles - 1;
    if (last) arrived[column_block] = 0;
  }
  __syncthreads();
  if (!last) return;
  for (int group = column_block; group < groups; group += column_blocks) {
    const int token = group * COLUMNS + warp;
    if (token < tokens)
      choose_experts<HELD>(c, token, lane, [&](int expert) {
        return __ldcg(scores + (i64)token * pitch + expert);
      });
  }
}

// One warp a token.
template <int HELD>
__global__ __launch_bounds__(WARPS * 32) void moe_choice_kernel(const float* scores, int pitch,
                                                           int tokens, int experts, int per_token,
                                                           int* chosen, float* weights,
                                                           float* shared_weights) {
  wait_for_previous_kernels();
  let_next_kernel_start();
  const Choice c = {tokens, experts, per_token, chosen, weights, shared_weights};
  const int token = blockIdx.x * WARPS + warp_index();
  if (token < tokens)
    choose_experts<HELD>(c, token, threadIdx.x & 31, [&](int expert) {
      return __ldcg(scores + (i64)token * pitch + expert);
    });
}

#if NINFER_HAS_BULK_COPY

constexpr int CLUSTER = 8;
constexpr int CLUSTER_CHUNKS = 8, CLUSTER_HELD = 8;  // D up to 2048, E up to 256

// A cluster computes the scores of 8 tokens, each block those of 32 experts and of an eighth of the
// shared one's K, and hands those of the i-th token to block i, which chooses for it.
__global__ __launch_bounds__(2 * WARPS * 32, 1) void moe_route_few_kernel(
    const u16* x, i64 x_stride, const u16* __restrict__ weight, int size, int tokens, int experts,
    int per_token, int* chosen, float* weights, float* shared_weights) {
  __shared__ float sums[2][WARPS][COLUMNS][ROWS], scores[CLUSTER_HELD * 32], shared_scores[CLUSTER];
  arrive_at_cluster();
  const int lane = threadIdx.x & 31, warp = warp_index(), rank = cluster_rank();
  const int half = warp / WARPS, part = warp % WARPS, first_row = (rank * 2 + half) * ROWS;
  const int first_token = blockIdx.x / CLUSTER * COLUMNS;
  ScoreTile<CLUSTER_CHUNKS> rows;
  rows.load(weight, first_row, experts, size, part, lane);
  const int k = (rank * 32 + lane) * 8, shared_token = first_token + warp;
  const bool has_shared = k < size && warp < COLUMNS && shared_token < tokens;
  Pack<bf16, 8> shared_row = {};
  if (has_shared) shared_row = load_pack<8>((const bf16*)weight + (i64)experts * size + k);
  wait_for_previous_kernels();
  let_next_kernel_start();

  float of_shared = 0.f;
  if (has_shared) {
    const Pack<bf16, 8> row = load_pack<8>((const bf16*)x + shared_token * x_stride + k);
#pragma unroll
    for (int i = 0; i < 8; i++) of_shared = fmaf(row[i], shared_row[i], of_shared);
  }
  float acc[4];
  rows.multiply(acc, x, x_stride, first_token, tokens, size, part, lane);
  leave_sums(sums[half][part], acc, lane);
  of_shared = warp_sum(of_shared);
  __syncthreads();
  wait_for_cluster();  // all blocks of it have begun
  if (warp < COLUMNS && lane == 0)
    store_cluster_float(shared_address(shared_scores + rank), warp, of_shared);
  if (threadIdx.x < 2 * COLUMNS * ROWS) {
    const int tile = threadIdx.x / (COLUMNS * ROWS), column = threadIdx.x / ROWS % COLUMNS;
    const int row = threadIdx.x % ROWS;
    float v = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) v += sums[tile][w][column][row];
    store_cluster_float(shared_address(scores + (rank * 2 + tile) * ROWS + row), column, v);
  }
  synchronize_cluster();
  const int token = first_token + rank;
  if (warp > 0 || token >= tokens) return;
  const Choice c = {tokens, experts, per_token, chosen, weights, shared_weights};
  choose_experts<CLUSTER_HELD>(c, token, lane, [&](int expert) {
    if (expert < experts) return scores[expert];
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < CLUSTER; i++) sum += shared_scores[i];
    return sum;
  });
}

#endif

}  // namespace ninfer
