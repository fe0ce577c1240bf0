// Copies from global to shared memory that run beside the arithmetic: `cp.async` by every lane, and
// bulk copies that a memory barrier counts (sm_90 and newer).
#pragma once
#include "ninfer/prelude.cuh"

namespace ninfer {

NINFER_DEVICE void copy_16(u32 target, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}
NINFER_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
NINFER_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#if NINFER_HAS_BULK_COPY

NINFER_DEVICE void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
NINFER_DEVICE void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
NINFER_DEVICE void barrier_expect(u32 barrier, u32 num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(num_bytes)
               : "memory");
}
NINFER_DEVICE void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
NINFER_DEVICE void barrier_wait(u32 barrier, u32 phase) {
  u32 done;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(phase)
        : "memory");
  } while (!done);
}

// Weights are read once, activations by every block: tell L2 which to keep. What `createpolicy` makes
// for all of the data, written down so that it needs no registers.
constexpr u64 EVICT_FIRST = 0x12f0000000000000ull, EVICT_LAST = 0x14f0000000000000ull;

// Copies `num_bytes` (a multiple of 16, both addresses too) and counts them on `barrier`.
NINFER_DEVICE void bulk_copy(u32 target, const void* source, u32 num_bytes, u32 barrier,
                             u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(target),
      "l"(source), "r"(num_bytes), "r"(barrier), "l"(policy)
      : "memory");
}

#endif

// A ring of shared-memory stages that one warp fills and reads by itself, in order; `fill` and
// `wait` are called by the whole warp. No barrier of the block is involved.
template <int STAGES, int STAGE_BYTES>
struct WarpRing {
  u32 data, barriers, phase;
  int slot, lane;

  // `barriers`: 8 bytes a stage, of this warp alone.
  NINFER_DEVICE WarpRing(u32 data, u32 barriers, int lane)
      : data(data), barriers(barriers), phase(0), slot(0), lane(lane) {
#if NINFER_HAS_BULK_COPY
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < STAGES; i++) barrier_init(barriers + 8 * i, 1);
      barrier_init_fence();
    }
    __syncwarp();
#endif
  }

  NINFER_DEVICE bool fills() const { return !NINFER_HAS_BULK_COPY || lane == 0; }

  // Start to fill a stage that nobody reads; by the lanes for which `fills()` holds. On sm_8x the
  // count of fills orders them, so that a fill of 0 bytes must take the place of one that is over.
  NINFER_DEVICE void fill(int stage, const u8* source, u32 num_bytes) {
    const u32 target = data + stage * STAGE_BYTES;
#if NINFER_HAS_BULK_COPY
    if (num_bytes == 0) return;
    barrier_expect(barriers + 8 * stage, num_bytes);
    bulk_copy(target, source, num_bytes, barriers + 8 * stage, EVICT_FIRST);
#else
    for (u32 i = lane * 16; i < num_bytes; i += 512) copy_16(target + i, source + i);
    commit_copies();
#endif
  }

  // The same from two places, `num_bytes` each; the second part lies at half of the stage.
  NINFER_DEVICE void fill_halves(int stage, const u8* first, const u8* second, u32 num_bytes) {
    const u32 target = data + stage * STAGE_BYTES, half = target + STAGE_BYTES / 2;
#if NINFER_HAS_BULK_COPY
    if (num_bytes == 0) return;
    barrier_expect(barriers + 8 * stage, 2 * num_bytes);
    bulk_copy(target, first, num_bytes, barriers + 8 * stage, EVICT_FIRST);
    bulk_copy(half, second, num_bytes, barriers + 8 * stage, EVICT_FIRST);
#else
    for (u32 i = lane * 16; i < num_bytes; i += 512) {
      copy_16(target + i, first + i);
      copy_16(half + i, second + i);
    }
    commit_copies();
#endif
  }

  // Wait for the next stage in order and return its address.
  NINFER_DEVICE u32 wait() {
#if NINFER_HAS_BULK_COPY
    barrier_wait(barriers + 8 * slot, phase);
#else
    wait_for_copies<STAGES - 1>();
    __syncwarp();
#endif
    return data + slot * STAGE_BYTES;
  }

  // All lanes are done with the stage that `wait` returned; it is `stage` for the next fill.
  NINFER_DEVICE int release() {
    __syncwarp();
    const int stage = slot;
    if (++slot == STAGES) {
      slot = 0;
      phase ^= 1;
    }
    return stage;
  }
};

}  // namespace ninfer
