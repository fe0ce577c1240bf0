// Products of gates and up matrices that blocks of one kernel hand to one another, and rows of them as
// B fragments of a warp.
#pragma once
#include "ninfer/activation_rows.cuh"
#include "ninfer/expert_exchange.cuh"
#include "ninfer/expert_groups.cuh"

namespace ninfer {

// The largest over 16 neighbouring lanes, which come together.
NINFER_DEVICE float largest_of_16(float x) {
#pragma unroll
  for (int d = 8; d > 0; d /= 2)
    x = fmaxf(x, __shfl_xor_sync(0xffffu << (threadIdx.x & 16), x, d));
  return x;
}

// Sends value `k` of a row of products whose words begin at `first`: two values a word, in fragment
// order, f16 with a power of two taken out of every 16 values, or bf16 if KEEP_BF16. `largest` is that of
// the 16 values of its step, which 16 neighbouring lanes hold, who come together.
template <bool KEEP_BF16>
NINFER_DEVICE void send_product(const TaggedWords& words, int first, int k, float h,
                                float largest) {
  const u32 factor = __float_as_uint(KEEP_BF16 ? 1.f : packing_factor(largest));
  const float inverse = __uint_as_float((254u << 23) - factor);  // of a power of two
  const u32 own = KEEP_BF16 ? float_to_bf16(h) : float_to_f16(h * inverse);
  const u32 next = __shfl_down_sync(0xffffu << (threadIdx.x & 16), own, 1, 16);
  if (k % 2 == 0)
    words.send(first + fragment_place(k) / 2, own | next << 16, factor >> 23);
}

// The rows that a warp multiplies, up to N records of 64 values at a time.
template <int N, int PITCH>
struct GatheredRows {
  u32 memory;  // shared, of this warp: `PITCH` bytes a row
  int lane;

  // Waits for `count` records of a row, whose words begin at `first`, and puts them down. Returns what
  // its values are still to be multiplied with.
  NINFER_DEVICE float gather(const TaggedWords& words, int row, int first, int count) const {
    u64 word[N];
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
      if (i < count) word[i] = words.load(first + lane + i * 32);
#pragma unroll
    for (int i = 0; i < N; i++)
      if (i < count) {
        word[i] = words.receive(first + lane + i * 32, word[i]);
        largest = max(largest, small_of(word[i]));
      }
    // The largest of the factors belongs to the row; the others are made up for where they differ.
    largest = __reduce_max_sync(~0u, largest);
#pragma unroll
    for (int i = 0; i < N; i++)
      if (i < count) {
        const u32 half = float_to_f16(__uint_as_float((127 - largest + small_of(word[i])) << 23));
        *(u32*)shared_pointer(memory + row * PITCH + i * 128 + lane * 4) =
            half == 0x3c00u ? (u32)word[i] : mul_f16x2((u32)word[i], half | half << 16);
      }
    return __uint_as_float(largest << 23);
  }

  // What this lane needs of a record of a row.
  NINFER_DEVICE void load(int row, int record, u32* b) const {
    const u32 p = memory + row * PITCH + record * 128 + (lane & 3) * 16;
    unpack_fragment(load_shared_16(p), load_shared_16(p + 64), b);
  }
};

}  // namespace ninfer
