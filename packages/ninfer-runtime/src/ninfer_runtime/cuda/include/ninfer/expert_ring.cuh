// Rings of one warp that do not disturb one another: each stage has a barrier of its own on every GPU, so
// that a warp may have several, and copies beside them.
#pragma once
#include "ninfer/async_copy.cuh"

namespace ninfer {

// As WarpRing, but that barriers are prepared by `prepare`, and that a fill of 0 bytes takes no place.
// Without bulk copies all lanes arrive at a barrier, each once its copies have.
template <int STAGES, int STAGE_BYTES>
struct BarrierRing {
  u32 data, barriers, phase;
  int slot;

  // `barriers`: 8 bytes a stage, of this warp alone.
  NINFER_DEVICE BarrierRing(u32 data, u32 barriers)
      : data(data), barriers(barriers), phase(0), slot(0) {}

  NINFER_DEVICE static int lane() { return threadIdx.x & 31; }
  NINFER_DEVICE static bool fills() { return !NINFER_HAS_BULK_COPY || lane() == 0; }

  // Once, before the first fill; by the whole warp.
  NINFER_DEVICE void prepare() const {
    if (lane() == 0)
#pragma unroll
      for (int i = 0; i < STAGES; i++)
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barriers + 8 * i),
                     "r"(NINFER_HAS_BULK_COPY ? 1 : 32)
                     : "memory");
#if NINFER_HAS_BULK_COPY
    if (lane() == 0) barrier_init_fence();
#else
    __syncwarp();
#endif
  }

#if NINFER_HAS_BULK_COPY
  NINFER_DEVICE void copy(u32 target, const u8* source, u32 num_bytes, u32 barrier) const {
    bulk_copy(target, source, num_bytes, barrier, EVICT_FIRST);
  }
  NINFER_DEVICE void announce(u32 barrier, u32 num_bytes) const {
    barrier_expect(barrier, num_bytes);
  }
  NINFER_DEVICE void arrive(u32) const {}
#else
  NINFER_DEVICE void copy(u32 target, const u8* source, u32 num_bytes, u32) const {
    for (u32 i = lane() * 16; i < num_bytes; i += 512) copy_16(target + i, source + i);
  }
  NINFER_DEVICE void announce(u32, u32) const {}
  NINFER_DEVICE void arrive(u32 barrier) const {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
  }
#endif

  // Start to fill a stage that nobody reads; by the lanes for which `fills()` holds.
  NINFER_DEVICE void fill(int stage, const u8* source, u32 num_bytes) const {
    const u32 barrier = barriers + 8 * stage;
    if (num_bytes == 0) return;
    announce(barrier, num_bytes);
    copy(data + stage * STAGE_BYTES, source, num_bytes, barrier);
    arrive(barrier);
  }

  // The same from two places, `num_bytes` each; the second part lies at half of the stage.
  NINFER_DEVICE void fill_halves(int stage, const u8* first, const u8* second,
                                 u32 num_bytes) const {
    const u32 barrier = barriers + 8 * stage, target = data + stage * STAGE_BYTES;
    if (num_bytes == 0) return;
    announce(barrier, 2 * num_bytes);
    copy(target, first, num_bytes, barrier);
    copy(target + STAGE_BYTES / 2, second, num_bytes, barrier);
    arrive(barrier);
  }

  // Wait for the next stage in order and return its address.
  NINFER_DEVICE u32 wait() const {
#if NINFER_HAS_BULK_COPY
    barrier_wait(barriers + 8 * slot, phase);
#else
    u32 done;
    do {
      asm volatile(
          "{\n.reg .pred p;\n"
          "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(barriers + 8 * slot), "r"(phase)
          : "memory");
    } while (!done);
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
