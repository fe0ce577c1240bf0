// The choice of the best experts of one token by all threads of a block, a thread for each expert.
#pragma once
#include "ninfer/expert_choice.cuh"

namespace ninfer {

// Each of eight warps lists the best of its 32 experts, then all lists are compared with one another. Up
// to 8 experts are chosen, of up to 256, by 512 threads. Two of the same score show as one place that is
// taken twice: then `flags` has TIE, and the choice is to be made otherwise.
template <int A>
struct BlockChoice {
  static constexpr int EXPERTS = 256, THREADS = 512, LENGTH = 8;
  static constexpr int TIE = 1, BAD = 2;  // BAD: some score is not a number
  static_assert(A <= LENGTH, "places of a list");
  u32* orders;   // [EXPERTS], order_of the scores
  u32* best;     // [8 lists][LENGTH] orders, then as many numbers of experts; 16-byte aligned
  int* flags;    // 0 before

  // By the first EXPERTS threads: `mine` is the order of expert `thread`, 0 if there is none.
  NINFER_DEVICE void list(u32 mine, int thread) const {
    u32* const own = best + thread / 32 * LENGTH;
    orders[thread] = mine;
    if (thread % 32 < LENGTH) own[thread % 32] = 0;
    __syncwarp();
    int better[4] = {};  // sums that wait for one another less
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const uint4 other = ((const uint4*)(orders + thread / 32 * 32))[j];
      better[0] += other.x > mine;
      better[1] += other.y > mine;
      better[2] += other.z > mine;
      better[3] += other.w > mine;
    }
    const int place = (better[0] + better[1]) + (better[2] + better[3]);
    const bool listed = mine != 0 && place < A;
    if (listed) {
      own[place] = mine;
      own[EXPERTS / 32 * LENGTH + place] = thread;
    }
    __syncwarp();
    if (listed && own[EXPERTS / 32 * LENGTH + place] != thread) atomicOr(flags, TIE);
    if (mine == 1) atomicOr(flags, BAD);
  }

  // By all threads, after a barrier: place[a] gets expert and order of the a-th choice.
  NINFER_DEVICE void choose(int* experts, u32* chosen_orders, int thread) const {
    const int candidate = thread / LENGTH;
    const u32 mine = best[candidate];
    const uint4* const other = (const uint4*)best + thread % 8 * 2;
    const uint4 a = other[0], b = other[1];
    int larger = ((a.x > mine) + (a.y > mine)) + ((a.z > mine) + (a.w > mine)) +
                 (((b.x > mine) + (b.y > mine)) + ((b.z > mine) + (b.w > mine)));
    int equal = ((a.x == mine) + (a.y == mine)) + ((a.z == mine) + (a.w == mine)) +
                (((b.x == mine) + (b.y == mine)) + ((b.z == mine) + (b.w == mine)));
    int both = larger + equal * 256;
#pragma unroll
    for (int d = 1; d < 8; d *= 2) both += __shfl_xor_sync(~0u, both, d);
    const int place = both % 256;
    if (thread % 8 != 0 || mine == 0 || place >= A) return;
    experts[place] = best[EXPERTS / 32 * LENGTH + candidate];
    chosen_orders[place] = mine;
    if (both / 256 > 1) atomicOr(flags, TIE);
  }
};

}  // namespace ninfer
