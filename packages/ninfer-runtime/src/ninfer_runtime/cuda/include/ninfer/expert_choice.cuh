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
  if (order == 1) return __uint_as_float(0x7fffffffu);
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

// What a lane keeps of a choice: the expert in its place and its score.
struct Chosen {
  int expert;
  float score;
  bool bad;  // some score is not a number
};

// The best experts that a lane holds, one after the other: lane l gets the l-th choice.
template <int HELD>
NINFER_DEVICE void choose_in_turn(u32* held, int per_token, int lane, u32& my_order,
                                  u32& my_expert) {
#pragma unroll 1
  for (int a = 0; a < per_token; a++) {
    u32 best = 0;
#pragma unroll
    for (int i = 0; i < HELD; i++) best = max(best, held[i]);
    const u32 winner = __reduce_max_sync(~0u, best);
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
}

// One warp chooses for one token; lane l looks at experts l, l + 32, ... and keeps the l-th choice.
// order(expert): order_of its score. `list`: 32 words of shared memory of this warp.
//
// The A-th largest of what is best in each lane bounds the choice from below. What reaches it is mostly
// few, so that all of it is compared with one another at once.
template <int HELD, class Order>
NINFER_DEVICE Chosen choose_experts(int experts, int per_token, int lane, u64* list, Order order) {
  u32 held[HELD], best = 0;
  bool bad = false;
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    const int expert = i * 32 + lane;
    held[i] = 0;  // none
    if (expert < experts) held[i] = order(expert);
    bad |= held[i] == 1;
    best = max(best, held[i]);
  }
  bad = __any_sync(~0u, bad);
  list[lane] = 0;
  __syncwarp();

  u32 bound = 1;
#pragma unroll 1
  for (int a = 0; a < per_token; a++) {
    const u32 largest = __reduce_max_sync(~0u, best);
    if (best == largest) best = 0;  // of several lanes, if they are equal: the bound is then lower
    bound = max(largest, 1);
  }
  int count = 0;
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    const u32 lanes = __ballot_sync(~0u, held[i] >= bound);
    const int at = count + __popc(lanes & ((1u << lane) - 1));
    if (held[i] >= bound && at < 32) list[at] = (u64)held[i] << 32 | ~(u32)(i * 32 + lane);
    count += __popc(lanes);
  }
  __syncwarp();
  u32 my_order = 0, my_expert = 0;
  if (count <= 32) {
    u64 mine = list[lane];
    int better[4] = {};  // sums that wait for one another less
#pragma unroll 1
    for (int j = 0; j < count; j += 8)
#pragma unroll
      for (int i = 0; i < 8; i++) better[i % 4] += list[j + i] > mine;
    __syncwarp();
    if (lane < count) list[better[0] + better[1] + better[2] + better[3]] = mine;
    __syncwarp();
    mine = list[lane];
    my_order = (u32)(mine >> 32);
    my_expert = ~(u32)mine;
  } else {
    choose_in_turn<HELD>(held, per_token, lane, my_order, my_expert);
  }

  return {(int)my_expert, score_of(my_order), bad};
}

// What the expert of lane l < A counts; the scores are still to be multiplied with `factor`, which is
// positive.
NINFER_DEVICE float weight_of(const Chosen& mine, int per_token, int lane, float factor) {
  const float largest = __shfl_sync(~0u, mine.score, 0);
  const float exponential = lane < per_token ? expf((mine.score - largest) * factor) : 0.f;
  const float sum = warp_sum(exponential);
  return mine.bad ? __uint_as_float(0x7fffffffu) : exponential / sum;
}

}  // namespace ninfer
