// Sums of squares over a head of Gated DeltaNet whose value rows lie in several blocks of a cluster.
#pragma once
#include "ninfer/async_copy.cuh"
#include "ninfer/cluster.cuh"
#include "ninfer/prelude.cuh"

namespace ninfer {

// The sum over WIDTH neighbouring lanes, nearest ones first: so the sums of strips are added last.
template <int WIDTH>
NINFER_DEVICE float rising_sum(float x) {
#pragma unroll
  for (int d = 1; d < WIDTH; d *= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}

// The sums of squares that the blocks of a cluster send each other: those of a chunk and of the one
// after it, because a block may be one ahead.
template <int STRIPS, int TOKENS>
struct StripSums {
  float sums[2][TOKENS][STRIPS];
  u64 barriers[2];

  NINFER_DEVICE void begin() {
#if NINFER_HAS_BULK_COPY
    for (int i = 0; i < 2; i++) barrier_init(shared_address(barriers + i), 1);
    barrier_init_fence();
#endif
  }
  // By one thread, for each chunk.
  NINFER_DEVICE void expect(int chunk, int tokens) {
#if NINFER_HAS_BULK_COPY
    barrier_expect(shared_address(barriers + chunk % 2), tokens * (STRIPS - 1) * 4);
#endif
  }
  // The sum of all strips for a token, by the lanes that have the one of `strip`, `lane` of them;
  // `exists`: whether the chunk has the token. Whoever has waited has received all of a chunk, so that
  // a block that ends is sent nothing more.
  NINFER_DEVICE float exchange(int chunk, int token, int strip, float own, int lane, bool exists) {
    const u32 barrier = shared_address(barriers + chunk % 2);
    float* of_token = sums[chunk % 2][token];
    if (exists && lane < STRIPS && lane != strip)
      send_cluster_float(shared_address(of_token + strip), lane, own, barrier);
#if NINFER_HAS_BULK_COPY
    barrier_wait(barrier, chunk / 2 & 1);
#endif
    float part[STRIPS];
#pragma unroll
    for (int i = 0; i < STRIPS; i++)
      part[i] = i == strip ? own : load_shared_float(shared_address(of_token + i));
    return STRIPS == 2 ? part[0] + part[1] : (part[0] + part[1]) + (part[2] + part[STRIPS - 1]);
  }
};

}  // namespace ninfer
