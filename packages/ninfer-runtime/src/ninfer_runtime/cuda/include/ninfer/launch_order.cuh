// Order between kernels (programmatic dependent launch) and between the blocks of a cluster.
#pragma once
#include "ninfer/prelude.cuh"

namespace ninfer {

// Until this returns, only weights, constants and own shared memory may be touched: the kernels
// before this one in the stream may still run. Every block must call it.
NINFER_DEVICE void wait_for_previous_kernels() {
#if NINFER_HAS_BULK_COPY
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel of the stream start. As every kernel waits before it touches what changes, and
// ends only after it has waited, the order of what they write does not depend on where this is called:
// a short kernel calls it first, so that the next one may fetch weights; a long one that fills the
// multiprocessors calls it once its own loads run.
NINFER_DEVICE void let_next_kernel_start() {
#if NINFER_HAS_BULK_COPY
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

NINFER_DEVICE u32 cluster_rank() {
  u32 rank = 0;
#if NINFER_HAS_BULK_COPY
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

NINFER_DEVICE void synchronize_cluster() {
#if NINFER_HAS_BULK_COPY
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#endif
}

// A float in the shared memory of the block `rank` of the cluster.
NINFER_DEVICE float load_cluster_float(u32 address, u32 rank) {
  float v = 0.f;
#if NINFER_HAS_BULK_COPY
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(remote));
#endif
  return v;
}

}  // namespace ninfer
