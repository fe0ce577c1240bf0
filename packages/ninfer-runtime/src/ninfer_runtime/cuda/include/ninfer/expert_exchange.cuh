// What the blocks of one kernel tell one another through global memory while it runs: words that carry
// the number of the launch, so that readers see which are there and nothing has to be cleared or fenced.
//
// All blocks of the launch must be resident at once, and no two launches that use the same memory may
// overlap: a stream orders them, as a kernel reads the number after its wait.
#pragma once
#include "ninfer/prelude.cuh"

namespace ninfer {

constexpr u32 TAG_BITS = 24;

// A word: the tag, 8 bits and 32 bits of a value.
struct TaggedWords {
  u64* words;
  u32 tag;

  NINFER_DEVICE void send(int at, u32 bits, u32 small = 0) const {
    const u64 word = (u64)(tag << 8 | small) << 32 | bits;
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(words + at), "l"(word) : "memory");
  }
  NINFER_DEVICE u64 load(int at) const {
    u64 word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(words + at) : "memory");
    return word;
  }
  NINFER_DEVICE bool is_there(u64 word) const { return (u32)(word >> 40) == tag; }
  // Waits for a word of which `word` has been read before.
  NINFER_DEVICE u64 receive(int at, u64 word) const {
    while (!is_there(word)) word = load(at);
    return word;
  }
  // Receives `count` words by THREADS threads, each of them `TOGETHER` at a time; take(i, bits) gets
  // them.
  template <int THREADS, int TOGETHER, class Take>
  NINFER_DEVICE void receive_all(int count, int thread, Take take) const {
#pragma unroll 1
    for (int begin = thread; begin < count; begin += THREADS * TOGETHER) {
      u64 word[TOGETHER];
#pragma unroll
      for (int i = 0; i < TOGETHER; i++)
        if (begin + i * THREADS < count) word[i] = load(begin + i * THREADS);
#pragma unroll
      for (int i = 0; i < TOGETHER; i++) {
        const int at = begin + i * THREADS;
        if (at < count) take(at, (u32)receive(at, word[i]));
      }
    }
  }
};
NINFER_DEVICE u32 small_of(u64 word) { return (u32)(word >> 32) & 0xffu; }

// Counts launches in device memory: the block that is the last one to have received everything raises
// the number. Before the tags repeat, that block clears all words.
struct LaunchNumber {
  u32* state;  // the number of launches before this one; blocks of it that are done

  // The tag of this launch, which is never 0.
  NINFER_DEVICE u32 tag() const {
    u32 before;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(before) : "l"(state) : "memory");
    return before + 1;
  }
  // By one thread of a block that has received everything: how many blocks have.
  NINFER_DEVICE u32 count_block() const {
    u32 before;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(state + 1)
                 : "memory");
    return before + 1;
  }
  // By a warp, if it was the last block.
  NINFER_DEVICE void raise(u32 tag, u64* words, int count, int lane) const {
    const bool repeats = tag == (1u << TAG_BITS) - 1;
    if (lane == 0) {
      state[0] = repeats ? 0 : tag;
      state[1] = 0;
    }
    if (repeats)
      for (int i = lane; i < count; i += 32) words[i] = 0;
  }
};

}  // namespace ninfer
