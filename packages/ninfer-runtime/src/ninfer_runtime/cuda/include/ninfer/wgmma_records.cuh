// Products of weight records with activations in shared memory, by a warpgroup (sm_90a): weights are
// decoded into registers and multiplied from there.
#pragma once
#include "ninfer/weight_record.cuh"
#include "ninfer/wgmma.cuh"

namespace ninfer {

#if NINFER_HAS_WGMMA

// Starts d[64, N] = or += four warps' fragments of `STEPS` steps * N columns of x at descriptor b.
template <int F, int N, int STEPS>
NINFER_DEVICE void start_product(float* d, const u32 (*a)[4], u32 b, bool accumulate) {
  constexpr int WIDTH = N > 64 ? 64 : N;
#pragma unroll
  for (int s = 0; s < STEPS; s++)
#pragma unroll
    for (int n = 0; n < N; n += WIDTH) {
      const u32 tile = b + 2 * s + n * 128 / 16;
      if constexpr (F == BF16)
        wgmma_bf16<WIDTH>(d + n / 2, a[s], tile, accumulate || s > 0);
      else
        wgmma_f16<WIDTH>(d + n / 2, a[s], tile, accumulate || s > 0);
    }
}

// acc += sum * the f16 scales of rows g (lower half) and g + 8.
template <int N>
NINFER_DEVICE void add_scaled(float* acc, float* sum, u32 scales) {
  wgmma_pin<N / 2>(sum);
  const float s0 = f16_to_float((u16)scales), s1 = f16_to_float((u16)(scales >> 16));
#pragma unroll
  for (int j = 0; j < N / 2; j++) acc[j] = fmaf(sum[j], j & 2 ? s1 : s0, acc[j]);
}

// What a warp multiplies its rows with, record by record. While the tensor cores work on one record,
// the next is decoded; so the stage of the last record is free one record later.
template <int F, int N>
struct Multiplier {
  // Groups whose scales multiply sums; other formats have theirs in the operands, or in the rows.
  static constexpr int GROUPS = F <= Q8 ? RecordShape<F>::GROUPS : 0;
  // With two groups the registers do not suffice for two records; there is more time for each.
  static constexpr bool AHEAD = GROUPS < 2;
  float acc[N / 2];
  float sum[GROUPS > 0 ? N / 2 : 1];
  u32 scales;
  u32 a[AHEAD ? 2 : 1][4][4];

  NINFER_DEVICE void clear() {
#pragma unroll
    for (int j = 0; j < N / 2; j++) acc[j] = 0.f;
    forget();
  }

  // Nothing is in flight.
  NINFER_DEVICE void forget() {
    scales = 0;
    if constexpr (GROUPS == 1) {
#pragma unroll
      for (int j = 0; j < N / 2; j++) sum[j] = 0.f;
    }
  }

  // Adds what is in flight to the sums.
  NINFER_DEVICE void finish() {
    if constexpr (GROUPS < 2) wgmma_wait<0>();
    if constexpr (GROUPS == 0) wgmma_pin<N / 2>(acc);
    if constexpr (GROUPS == 1) add_scaled<N>(acc, sum, scales);
  }

  // Starts the product of one record and the tile of x at descriptor b. When it returns, the record
  // before is done. `slot` alternates between 0 and 1.
  NINFER_DEVICE void step(u32 record, bool valid, int lane, int slot, u32 b) {
    if constexpr (!AHEAD) slot = 0;
    u32 next[GROUPS > 0 ? GROUPS : 1] = {};
    if (valid) {
      const LaneRecord<F> r = load_record<F>(record, lane);
#pragma unroll
      for (int s = 0; s < 4; s++) decode_scaled_step<F>(r, s, a[slot][s]);
#pragma unroll
      for (int i = 0; i < GROUPS; i++) next[i] = scale_pair<F>(r, i);
    }
    if constexpr (GROUPS == 0) {
      wgmma_fence();
      start_product<F, N, 4>(acc, a[slot], b, true);
      wgmma_commit();
      wgmma_wait<1>();
    } else if constexpr (GROUPS == 1) {
      finish();
      wgmma_fence();
      start_product<F, N, 4>(sum, a[slot], b, false);
      wgmma_commit();
      scales = next[0];
    } else {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        wgmma_fence();
        start_product<F, N, 2>(sum, a[slot] + 2 * i, b + 4 * i, false);
        wgmma_commit();
        wgmma_wait<0>();
        add_scaled<N>(acc, sum, next[i]);
      }
    }
  }
};

#endif

}  // namespace ninfer
