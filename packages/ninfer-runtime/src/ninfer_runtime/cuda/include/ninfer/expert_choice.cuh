// The choice of the best experts of a token by their scores.
#pragma once
#include "ninfer/prelude.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

// A number that is the larger, the larger the score; 1 for what is not a number.
NINFER_DEVICE u32 order_of(float score) {
  const u32 bits = __float_as_uint(score + 0.f);  // -0 equals +0
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 1;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
NINFER_DEVICE float score_of(u32 order) {
  return __uint_as_float(order >> 31 ? order & 0x7fffffffu : ~order);
}

NINFER_DEVICE float shared_weight_of(float score) { return 1.f / (1.f + expf(-score)); }

// The sum of products of eight pairs of bf16 values, which lie alike.
NINFER_DEVICE float dot_of_pairs(const uint4& a, const uint4& b) {
  const u32 left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    sum = fmaf(bf16_to_float((u16)left[i]), bf16_to_float((u16)right[i]), sum);
    sum = fmaf(bf16_to_float(left[i] >> 16), bf16_to_float(right[i] >> 16), sum);
  }
  return sum;
}

// What a lane keeps of a choice: the expert in its place, and what it counts.
struct Chosen {
  int expert;
  float weight;
};

// One warp chooses for one token; lane l looks at experts l, l + 32, ... and keeps the l-th choice.
// score(expert) is that of an expert, still to be multiplied with `factor`, which is positive.
template <int HELD, class Score>
NINFER_DEVICE Chosen choose_experts(int experts, int per_token, int lane, float factor,
                                    Score score) {
  u32 held[HELD];
  bool bad = false;
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    const int expert = i * 32 + lane;
    held[i] = 0;  // none
    if (expert < experts) held[i] = order_of(score(expert));
    bad |= held[i] == 1;
  }
  bad = __any_sync(~0u, bad);

  u32 my_order = 0, my_expert = 0;
  for (int a = 0; a < per_token; a++) {
    u32 best[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) best[i] = held[i];
#pragma unroll
    for (int d = HELD / 2; d > 0; d /= 2)
#pragma unroll
      for (int i = 0; i < d; i++) best[i] = max(best[i], best[i + d]);
    const u32 winner = __reduce_max_sync(~0u, best[0]);
    u32 expert = ~0u;
#pragma unroll
    for (int i = HELD - 1; i >= 0; i--)
      if (held[i] == winner) expert = i * 32 + lane;
    const u32 chosen = __reduce_min_sync(~0u, expert);
#pragma unroll
    for (int i = 0; i < HELD; i++)
      if (i * 32 + lane == chosen) held[i] = 0;
    if (lane == a) {
      my_order = winner;
      my_expert = chosen;
    }
  }

  const float mine = score_of(my_order), largest = __shfl_sync(~0u, mine, 0);
  const float exponential = lane < per_token ? expf((mine - largest) * factor) : 0.f;
  const float sum = warp_sum(exponential);
  return {(int)my_expert, bad ? __uint_as_float(0x7fffffffu) : exponential / sum};
}

}  // namespace ninfer
