// Exchange between the blocks of a cluster through their shared memory; without clusters (sm_8x) a
// block is its own cluster.
#pragma once
#include "ninfer/prelude.cuh"

namespace ninfer {

// The two halves of a barrier of the cluster: what a block stored before it arrived is seen by the
// others after they have waited.
NINFER_DEVICE void arrive_at_cluster() {
#if NINFER_HAS_BULK_COPY
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
NINFER_DEVICE void wait_for_cluster() {
#if NINFER_HAS_BULK_COPY
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// Stores a float to `address` of the shared memory of the block `rank` of the cluster.
NINFER_DEVICE void store_cluster_float(u32 address, u32 rank, float v) {
#if NINFER_HAS_BULK_COPY
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(v) : "memory");
#else
  store_shared_float(address, v);
#endif
}

// The same; its 4 bytes count on the memory barrier there that has the address `barrier` here.
NINFER_DEVICE void send_cluster_float(u32 address, u32 rank, float v, u32 barrier) {
#if NINFER_HAS_BULK_COPY
  asm volatile(
      "{\n.reg .b32 target, counter;\n"
      "mapa.shared::cluster.u32 target, %0, %1;\n"
      "mapa.shared::cluster.u32 counter, %3, %1;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [target], %2, [counter];\n}" ::"r"(
          address),
      "r"(rank), "f"(v), "r"(barrier)
      : "memory");
#endif
}

}  // namespace ninfer
