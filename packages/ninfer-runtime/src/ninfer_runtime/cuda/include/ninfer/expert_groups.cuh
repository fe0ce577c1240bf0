// What the kernels for few tokens of a mixture of experts share.
//
// A slot is a token's place a: t * A + a. The slots of an expert are cut into groups of up to eight,
// the columns of one product.
#pragma once
#include "ninfer/async_copy.cuh"
#include "ninfer/elements.cuh"
#include "ninfer/mma.cuh"
#include "ninfer/prelude.cuh"

extern __shared__ __align__(1024) u8 dynamic_shared[];

namespace ninfer {

constexpr int COLUMNS = 8;  // of a product: slots of a group
constexpr int MAX_SLOTS = 512;
constexpr int BARRIERS = 1024;  // bytes

constexpr int larger_of(int a, int b) { return a > b ? a : b; }

// A barrier of `threads` threads of a block that use the same number, 1 to 15.
NINFER_DEVICE void synchronize_threads(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Where value k of a row lies if rows follow one another: [record][half][q][8 values].
NINFER_DEVICE int fragment_place(int k) {
  const int step = k >> 4 & 1, upper = k >> 3 & 1, q = k >> 1 & 3;
  return (k >> 5) * 32 + q * 8 + step * 4 + upper * 2 + (k & 1);
}

// The groups of all experts, in shared memory; every block finds the same.
struct Groups {
  int* total;
  int* expert;  // [group]
  int* size;    // [group], 1..8
  int* first;   // [expert] group
  u32* tokens;  // [expert][2] bits of its tokens
  u16* slot;    // [group][8]

  NINFER_DEVICE Groups(u8* memory, int most, int experts) {
    total = (int*)memory;
    expert = total + 1;
    size = expert + most;
    first = size + most;
    tokens = (u32*)(first + experts);
    slot = (u16*)(tokens + 2 * experts);
  }

  NINFER_DEVICE int count(int e) const { return __popc(tokens[2 * e]) + __popc(tokens[2 * e + 1]); }

  // How many tokens below `token` an expert has.
  NINFER_DEVICE int rank(int e, int token) const {
    const u32 below = (1u << (token & 31)) - 1;
    if (token < 32) return __popc(tokens[2 * e] & below);
    return __popc(tokens[2 * e]) + __popc(tokens[2 * e + 1] & below);
  }

  // By the whole block, whose barriers it uses; chosen(s) is the expert of a slot.
  template <int THREADS, class Chosen>
  NINFER_DEVICE void find(Chosen chosen, int num_tokens, int per_token, int experts) {
    constexpr int HELD = (MAX_SLOTS + THREADS - 1) / THREADS;
    const int thread = threadIdx.x, slots = num_tokens * per_token;
    int of_slot[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) {
      const int s = thread + i * THREADS;
      of_slot[i] = s < slots ? chosen(s) : -1;
    }
    if (num_tokens == 1) {  // its experts are different
#pragma unroll
      for (int i = 0; i < HELD; i++) {
        const int s = thread + i * THREADS;
        if (s >= slots) break;
        expert[s] = of_slot[i];
        size[s] = 1;
        slot[s * COLUMNS] = s;
      }
      if (thread == 0) *total = slots;
      __syncthreads();
      return;
    }
    for (int i = thread; i < 2 * experts; i += THREADS) tokens[i] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < HELD; i++) {
      const int token = (thread + i * THREADS) / per_token;
      if (of_slot[i] >= 0) atomicOr(tokens + 2 * of_slot[i] + token / 32, 1u << (token & 31));
    }
    __syncthreads();
    if (thread < 32) {
      const int share = (experts + 31) / 32, begin = thread * share;
      const int end = min_int(begin + share, experts);
      int sum = 0;
      for (int e = begin; e < end; e++) sum += (count(e) + COLUMNS - 1) / COLUMNS;
      int before = sum;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, before, d);
        if (thread >= d) before += other;
      }
      if (thread == 31) *total = before;
      before -= sum;
      for (int e = begin; e < end; e++) {
        first[e] = before;
        for (int left = count(e); left > 0; left -= COLUMNS, before++) {
          expert[before] = e;
          size[before] = min_int(left, COLUMNS);
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < HELD; i++) {
      const int s = thread + i * THREADS;
      if (of_slot[i] >= 0)
        slot[first[of_slot[i]] * COLUMNS + rank(of_slot[i], s / per_token)] = s;
    }
    __syncthreads();
  }
};

// A matrix of each expert, or of the shared one, in records.
struct Bank {
  const u8* data;
  const float* row_scale;  // null for formats without
  int records;             // of a row tile
};

// Rows of activations as B fragments: 16-byte words, each with what a lane needs for two steps.
struct Fragments {
  const u8* data;
  u32 row_bytes, record_bytes, half_bytes;  // from one to the next
  const float* factors;                     // [row], null if all are 1

  NINFER_DEVICE u32 place(int row, int record, int q) const {
    return row * row_bytes + record * record_bytes + q * 16;
  }
  NINFER_DEVICE void load(int row, int record, int q, u32* b) const {
    const u8* p = data + place(row, record, q);
    unpack_fragment(load_global_16(p), load_global_16(p + half_bytes), b);
  }
  NINFER_DEVICE float factor(int row) const { return factors ? factors[row] : 1.f; }
};

}  // namespace ninfer
