// Scores of the experts on tensor cores, and the choice of the best ones of each token.
#include "ninfer/cluster.cuh"
#include "ninfer/elements.cuh"
#include "ninfer/expert_choice.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/mma.cuh"
#include "ninfer/reduce.cuh"
#include "ninfer/residual_sums.cuh"
#include "ninfer/router_rows.cuh"

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

// Where the choices go.
struct Choice {
  int experts, per_token;
  int* chosen;            // [T, A]
  float* weights;         // [T, A]
  float* shared_weights;  // [T]

  // By one warp, which has `list`; score(e) is still to be multiplied with `factor`, score(experts) that
  // of the shared expert.
  template <int HELD, class Score>
  NINFER_DEVICE void make(int token, int lane, float factor, u64* list, Score score) const {
    const Chosen mine = choose_experts<HELD>(
        experts, per_token, lane, list, [&](int expert) { return order_of(score(expert)); });
    const float weight = weight_of(mine, per_token, lane, factor);
    if (lane < per_token) {
      chosen[(i64)token * per_token + lane] = mine.expert;
      weights[(i64)token * per_token + lane] = weight;
    }
    if (lane == 0) shared_weights[token] = shared_weight_of(score(experts) * factor);
  }
};

// A row tile of weights, one warp's part of K: CHUNKS chunks of 32 values. The order of values inside a
// product is free as long as both operands share it: a lane takes eight neighbouring ones of a row,
// two steps of the tensor cores.
template <int CHUNKS>
struct ScoreTile {
  uint4 a[CHUNKS][2];

  NINFER_DEVICE void load(const TokenRows& x, const u16* weight, int first_row, int rows, int part,
                          int lane) {
    const int g = lane >> 2, q = lane & 3;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int row = first_row + g + 8 * h, k = (part * CHUNKS + i) * 32 + q * 8;
        a[i][h] = make_uint4(0, 0, 0, 0);
        if (row < rows && k < x.size) a[i][h] = *(const uint4*)(weight + (i64)row * x.size + k);
      }
  }

  // Sums for the 8 tokens from `first_token` on: rows g, g + 8, tokens 2q, 2q + 1.
  NINFER_DEVICE void multiply(float* acc, const TokenRows& x, int first_token, int part, int lane) {
    uint4 b[CHUNKS];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
      b[i] = x.load(first_token + (lane >> 2), (part * CHUNKS + i) * 32 + (lane & 3) * 8);
    // Once, as fragments are of 8 tokens at most, and after all loads have begun.
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) a[i][h] = x.arrange(a[i][h]);
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
    const u16* x, i64 row_stride, i64 chunk_stride, int fragments, const float* squares,
    int square_count, float inverse_size, float eps, const u16* __restrict__ weight, int size,
    int tiles, int column_blocks, int choose, float* scores, int pitch, int tokens, int experts,
    int per_token, int* chosen, float* weights, float* shared_weights) {
  __shared__ float sums[2][WARPS][COLUMNS][ROWS];
  const TokenRows token_rows = {x, row_stride, chunk_stride, size, tokens, fragments != 0,
                              {squares, square_count, inverse_size, eps}};
  const Choice choice = {experts, per_token, chosen, weights, shared_weights};
  const int lane = threadIdx.x & 31, warp = warp_index();
  const int tile = blockIdx.x % tiles, column_block = blockIdx.x / tiles;
  const int groups = (tokens + COLUMNS - 1) / COLUMNS;
  ScoreTile<CHUNKS> rows;
  rows.load(token_rows, weight, tile * ROWS, experts + 1, warp, lane);
  let_next_kernel_start();
  wait_for_previous_kernels();

  int turn = 0;
  for (int group = column_block; group < groups; group += column_blocks, turn ^= 1) {
    float acc[4];
    rows.multiply(acc, token_rows, group * COLUMNS, warp, lane);
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
  __shared__ u64 lists[WARPS][32];
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
      choice.make<HELD>(token, lane, token_rows.factor(token, lane), lists[warp], [&](int expert) {
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
  let_next_kernel_start();
  wait_for_previous_kernels();
  const Choice choice = {experts, per_token, chosen, weights, shared_weights};
  __shared__ u64 lists[WARPS][32];
  const int warp = warp_index(), token = blockIdx.x * WARPS + warp;
  if (token < tokens)
    choice.make<HELD>(token, threadIdx.x & 31, 1.f, lists[warp], [&](int expert) {
      return __ldcg(scores + (i64)token * pitch + expert);
    });
}

#if NINFER_HAS_BULK_COPY

constexpr int CLUSTER = 8;
constexpr int CLUSTER_CHUNKS = 8, CLUSTER_HELD = 8;  // D up to 2048, E up to 256

// A cluster computes the scores of 8 tokens, each block those of 32 experts and of an eighth of the
// shared one's K, and hands those of the i-th token to block i, which chooses for it.
__global__ __launch_bounds__(2 * WARPS * 32, 1) void moe_route_few_kernel(
    const u16* x, i64 row_stride, i64 chunk_stride, int fragments, const float* squares,
    int square_count, float inverse_size, float eps, const u16* __restrict__ weight, int size,
    int tokens, int experts, int per_token, int* chosen, float* weights, float* shared_weights) {
  const TokenRows token_rows = {x, row_stride, chunk_stride, size, tokens, fragments != 0,
                              {squares, square_count, inverse_size, eps}};
  __shared__ float sums[2][WARPS][COLUMNS][ROWS], scores[CLUSTER_HELD * 32], shared_scores[CLUSTER];
  arrive_at_cluster();
  const int lane = threadIdx.x & 31, warp = warp_index(), rank = cluster_rank();
  const int half = warp / WARPS, part = warp % WARPS, first_row = (rank * 2 + half) * ROWS;
  const int first_token = blockIdx.x / CLUSTER * COLUMNS;
  ScoreTile<CLUSTER_CHUNKS> rows;
  rows.load(token_rows, weight, first_row, experts, part, lane);
  const int k = (rank * 32 + lane) * 8, shared_token = first_token + warp;
  const bool has_shared = warp < COLUMNS && shared_token < tokens;
  uint4 shared_row = make_uint4(0, 0, 0, 0);
  if (has_shared && k < size) shared_row = *(const uint4*)(weight + (i64)experts * size + k);
  let_next_kernel_start();
  wait_for_previous_kernels();

  uint4 shared_x = make_uint4(0, 0, 0, 0);
  if (has_shared) shared_x = token_rows.load(shared_token, k);
  // The last warp has nothing of the shared expert: it chooses.
  const int token = first_token + rank;
  const bool chooses = warp == 2 * WARPS - 1 && token < tokens;
  float squares_part = 0.f;
  if (chooses && squares) squares_part = token_rows.norm.part(token, lane);
  float acc[4];
  rows.multiply(acc, token_rows, first_token, part, lane);
  leave_sums(sums[half][part], acc, lane);
  const float of_shared = warp_sum(dot_of_pairs(shared_x, token_rows.arrange(shared_row)));
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
  if (!chooses) return;
  const Choice choice = {experts, per_token, chosen, weights, shared_weights};
  const float factor = squares ? token_rows.norm.factor_of(squares_part, 1.f) : 1.f;
  __shared__ u64 list[32];
  choice.make<CLUSTER_HELD>(token, lane, factor, list, [&](int expert) {
    if (expert < experts) return scores[expert];
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < CLUSTER; i++) sum += shared_scores[i];
    return sum;
  });
}

#endif

}  // namespace ninfer
