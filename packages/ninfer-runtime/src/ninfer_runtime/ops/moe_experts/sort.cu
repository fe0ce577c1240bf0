// Around the products of a mixture of experts for many tokens: slots are sorted by expert, rows packed,
// results added up.
//
// A slot is a token's place a: t * A + a. Sorted slots are rows; those of an expert follow one another
// and begin at a multiple of eight. A column tile is up to 128 or 64 rows of one expert.
#include "ninfer/activation_rows.cuh"
#include "ninfer/elements.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

constexpr int MAX_EXPERTS = 512;
constexpr int ALIGNMENT = 8;  // of the first row of an expert

NINFER_DEVICE int divide_up(int a, int b) { return (a + b - 1) / b; }

// `place` [slot]: row; `source` [row]: slot, -1 for padding; `tiles`: column tiles of the experts, as
// expert, first row and number of rows; `token_tiles`: of the shared expert, whose rows, one a token,
// begin at `token_rows`; `numbers`: of column tiles of both. One block. Which row of its expert a slot
// gets depends on chance, what is computed for it does not.
__global__ __launch_bounds__(1024, 1) void moe_sort_kernel(const int* chosen, int per_token,
                                                           int tokens, int experts,
                                                           int tile_columns, int token_rows,
                                                           int rows, int* place, int* source,
                                                           int4* tiles, int4* token_tiles,
                                                           int* numbers) {
  __shared__ int counts[MAX_EXPERTS], next[MAX_EXPERTS];
  const int thread = threadIdx.x, slots = tokens * per_token;
  wait_for_previous_kernels();
  let_next_kernel_start();
  for (int e = thread; e < experts; e += 1024) counts[e] = 0;
#pragma unroll 8
  for (int r = thread; r < rows; r += 1024) source[r] = -1;
  __syncthreads();
#pragma unroll 8
  for (int s = thread; s < slots; s += 1024) atomicAdd(counts + chosen[s], 1);
  __syncthreads();
  if (thread < 32) {
    const int share = divide_up(experts, 32), begin = thread * share;
    const int end = min_int(begin + share, experts);
    int sum = 0, number = 0;
    for (int e = begin; e < end; e++) {
      sum += divide_up(counts[e], ALIGNMENT) * ALIGNMENT;
      number += divide_up(counts[e], tile_columns);
    }
    int first = sum, tile = number;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int other_rows = __shfl_up_sync(~0u, first, d);
      const int other_tiles = __shfl_up_sync(~0u, tile, d);
      if (thread >= d) {
        first += other_rows;
        tile += other_tiles;
      }
    }
    if (thread == 31) {
      numbers[0] = tile;
      numbers[1] = divide_up(tokens, tile_columns);
    }
    first -= sum;
    tile -= number;
    for (int e = begin; e < end; e++) {
      next[e] = first;
      for (int i = 0; i < counts[e]; i += tile_columns)
        tiles[tile++] = make_int4(e, first + i, min_int(tile_columns, counts[e] - i), 0);
      first += divide_up(counts[e], ALIGNMENT) * ALIGNMENT;
    }
  }
  for (int i = thread; i * tile_columns < tokens; i += 1024)
    token_tiles[i] = make_int4(0, token_rows + i * tile_columns,
                               min_int(tile_columns, tokens - i * tile_columns), 0);
  for (int t = thread; t < tokens; t += 1024) source[token_rows + t] = t * per_token;
  __syncthreads();
#pragma unroll 8
  for (int s = thread; s < slots; s += 1024) {
    const int row = atomicAdd(next + chosen[s], 1);
    place[s] = row;
    source[row] = s;
  }
}

// Rows in the order that the tensor cores read: [record][pitch rows][64 values], swizzled, f16 after a
// power of two has been taken out of the row, or bf16 with KEEP_BF16. Row r is row source[r] / divisor
// of x, with divisor 0 row r itself. One block a row, from `first_row` on.
template <class X, bool KEEP_BF16, int THREADS>
__global__ __launch_bounds__(THREADS) void moe_pack_kernel(const X* x, i64 stride,
                                                           const int* source, int divisor,
                                                           int first_row, u16* packed,
                                                           float* factors, int size, int records,
                                                           i64 pitch) {
  __shared__ float partial[THREADS / 32];
  wait_for_previous_kernels();
  let_next_kernel_start();
  const int row = first_row + blockIdx.x, chunks = records * 8, slot = source[row];
  if (slot < 0) return;
  const i64 from = divisor ? slot / divisor : row;
  const X* values = x + from * stride;
  float inverse = 1.f;
  if constexpr (!KEEP_BF16) {
    float largest = 0.f;
    for (int c = threadIdx.x; c * 8 < size; c += THREADS) {
      const Pack<X, 8> v = load_pack<8>(values + c * 8);
#pragma unroll
      for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(v[i]));
    }
    const float factor = packing_factor(block_max<THREADS>(largest, partial, threadIdx.x));
    if (threadIdx.x == 0) factors[row] = factor;
    inverse = 1.f / factor;
  }
  for (int c = threadIdx.x; c < chunks; c += THREADS) {
    u32 words[4] = {};
    if (c * 8 < size) {
      const Pack<X, 8> v = load_pack<8>(values + c * 8);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const u32 word = KEEP_BF16 ? float_to_bf16(v[i]) : float_to_f16(v[i] * inverse);
        words[i / 2] |= word << i % 2 * 16;
      }
    }
    u16* target = packed + ((c / 8) * pitch + row) * 64 + (c % 8 ^ row % 8) * 8;
    *(uint4*)target = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// Adds up what a token gets, in the order of a, the shared expert last. `partial`: [row][columns]. One
// block a token.
template <class O>
__global__ __launch_bounds__(256) void moe_reduce_kernel(const int* place, const float* weights,
                                                         const float* shared_weights,
                                                         const float* partial, O* out,
                                                         i64 stride, int per_token, int columns,
                                                         int token_rows) {
  wait_for_previous_kernels();
  let_next_kernel_start();
  const i64 token = blockIdx.x;
  for (int c = threadIdx.x * 4; c < columns; c += 1024) {
    float sum[4] = {0.f, 0.f, 0.f, 0.f};
    const auto add = [&](float weight, const float* row) {
      const Pack<float, 4> v = load_pack<4>(row + c);
#pragma unroll
      for (int i = 0; i < 4; i++) sum[i] = fmaf(weight, v[i], sum[i]);
    };
    for (int a = 0; a < per_token; a++) {
      const i64 slot = token * per_token + a;
      add(weights[slot], partial + (i64)place[slot] * columns);
    }
    add(shared_weights[token], partial + (token_rows + token) * columns);
    Pack<O, 4> result;
#pragma unroll
    for (int i = 0; i < 4; i++) result.set(i, sum[i]);
    store_pack<4>(out + token * stride + c, result);
  }
}

}  // namespace ninfer
