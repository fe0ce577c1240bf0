// Sums of row tiles that two blocks of a kernel share, through global memory: one sends its own, the other
// finishes the tile. Both blocks run at the same time, but not in step; a cluster's memory would be
// nearer, but clusters start later than single blocks do.
#pragma once
#include "ninfer/prelude.cuh"

namespace ninfer {

// `words`: all 0 while nothing is on its way. A word holds a float and the mark that it is there, so that
// no fence is needed; who takes it clears it for the next kernel.
struct TileExchange {
  u64* words;

  NINFER_DEVICE void store(int at, u64 word) const {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(words + at), "l"(word) : "memory");
  }
  NINFER_DEVICE void send(int at, float v) const { store(at, 1ull << 32 | __float_as_uint(v)); }

  NINFER_DEVICE u64 load(int at) const {
    u64 word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(words + at) : "memory");
    return word;
  }

  // Waits for what was sent.
  NINFER_DEVICE float receive(int at) const {
    u64 word = load(at);
    while (word >> 32 == 0) word = load(at);
    store(at, 0);
    return __uint_as_float((u32)word);
  }
};

}  // namespace ninfer
