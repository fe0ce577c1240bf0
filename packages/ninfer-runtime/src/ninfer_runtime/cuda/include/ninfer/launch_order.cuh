// Order between kernels (programmatic dependent launch) and between the blocks of a cluster.
#pragma once
#include "ninfer/prelude.cuh"

namespace ninfer {

// Until this returns, only weights, constants and own shared memory may be touched: the kernels
// before this one in the stream may still run. Every block must call it.
//
// After a call of `linear` or `stacked_linear` a kernel may read more before it waits: whatever was
// written before that call, past the first-level cache. For a kernel starts when all blocks of the one
// before it have let it start or ended. Of the launches of such a call the first one lets the next start
// only after it has waited, so that everything before the call has ended by then, as nothing ends
// before it has waited itself. The others, which run beside it and let the next one start sooner, have
// started after that.
NINFER_DEVICE void wait_for_previous_kernels() {
#if NINFER_HAS_BULK_COPY
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel of the stream start. As every kernel waits before it touches what changes, and
// ends only after it has waited, the order of what they write does not depend on where this is called:
// a short kernel calls it first, so that the next one may fetch weights; a long one that fills the
// multiprocessors calls it once its own loads run.
//
// Blocks of a kernel may wait for one another if the device holds all of them at once: those of kernels
// before it have all started by then and end without it, those of later kernels start once all of this
// one have started and called this.
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

}  // namespace ninfer
