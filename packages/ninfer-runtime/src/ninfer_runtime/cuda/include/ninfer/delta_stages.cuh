// Where the chunks of Gated DeltaNet lie in shared memory, and how they get there.
#pragma once
#include "ninfer/async_copy.cuh"
#include "ninfer/delta_chunk.cuh"
#include "ninfer/delta_strip.cuh"

namespace ninfer {

// Shared memory of a block that runs through the chunks of a strip.
template <int STRIPS, bool OVERLAPS>
struct StripMemory {
  static constexpr int ROWS = HEAD / STRIPS;
  static constexpr int VALUES = KEY_RECORD_BYTES, INVERSE = VALUES + 2 / STRIPS * TILE_BYTES;
  static constexpr int SCORES = INVERSE + SQUARE_BYTES, FACTORS = SCORES + SQUARE_BYTES;
  static constexpr int STAGES = OVERLAPS ? 2 : 1, ALIGNMENT = OVERLAPS ? 1024 : 16;
  static constexpr int STAGE_BYTES =
      (FACTORS + FACTOR_BYTES + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  static constexpr int ROW_STRIDE =
      ROWS + 4;  // floats; what a warp stores together differs in banks
  static constexpr int RESULTS = STAGES * STAGE_BYTES;
  static constexpr int RESULT_BYTES = CHUNK * ROW_STRIDE * 4;
  static constexpr int SQUARES = RESULTS + STAGES * RESULT_BYTES;  // of the other strip, two chunks
  static constexpr int BARRIERS = SQUARES + 2 * CHUNK * 4;         // of each stage, of squares
  static constexpr int BYTES = BARRIERS + 4 * 8;
};

// Fetches chunks into the stages in turns.
template <int STRIPS, bool OVERLAPS>
struct Fetcher {
  using M = StripMemory<STRIPS, OVERLAPS>;
  u32 memory;
  const u8 *keys, *values;  // records of the first chunk
  u32 key_stride, value_stride;
  int strip;

  NINFER_DEVICE u32 stage(int chunk) const { return memory + chunk % M::STAGES * M::STAGE_BYTES; }
  NINFER_DEVICE u32 barrier(int chunk) const {
    return memory + M::BARRIERS + chunk % M::STAGES * 8;
  }
  // Called by THREADS threads, `thread` of them.
  template <int THREADS>
  NINFER_DEVICE void fetch(int chunk, int thread) const {
    const u32 target = stage(chunk);
    const u8* value = values + (i64)chunk * value_stride;
#if NINFER_HAS_BULK_COPY
    // Every fourth warp takes a share, because one thread of a warp starts its copies in turns.
    const int warp = thread / 32;
    static_assert(THREADS == 128, "four warps share the copies");
    if (thread % 32 != 0) return;
    if (warp == 0) barrier_expect(barrier(chunk), M::INVERSE + TERM_BYTES);
#else
    const int warp = -1;
#endif
    if (warp <= 0)
      copy<THREADS>(chunk, target, keys + (i64)chunk * key_stride, KEY_RECORD_BYTES, thread);
    if (warp < 0 || warp == 1)
      copy<THREADS>(chunk, target + M::VALUES, value + TERM_BYTES + strip * TILE_BYTES,
                    M::INVERSE - M::VALUES, thread);
    if (warp < 0 || warp == 2)
      copy<THREADS>(chunk, target + M::FACTORS, value + 2 * INVERSE_BYTES, FACTOR_BYTES, thread);
#pragma unroll
    for (int p = 0; p < 4; p++) {
      if (warp >= 0 && warp != p) continue;
#pragma unroll
      for (int matrix = 0; matrix < 2; matrix++)
        copy<THREADS>(
            chunk, target + M::INVERSE + matrix * SQUARE_BYTES + square_block(p, p) * BLOCK_BYTES,
            value + matrix * INVERSE_BYTES + lower_block(p, p) * BLOCK_BYTES, (4 - p) * BLOCK_BYTES,
            thread);
    }
#if !NINFER_HAS_BULK_COPY
    commit_copies();
#endif
  }
  template <int THREADS>
  NINFER_DEVICE void copy(int chunk, u32 target, const u8* source, int num_bytes,
                          int thread) const {
#if NINFER_HAS_BULK_COPY
    bulk_copy(target, source, num_bytes, barrier(chunk), EVICT_FIRST);
#else
    for (int i = thread * 16; i < num_bytes; i += THREADS * 16) copy_16(target + i, source + i);
#endif
  }
  // Clears the blocks above the diagonals of all stages, into which nothing is fetched.
  template <int THREADS>
  static NINFER_DEVICE void clear_upper(u8* shared, int thread) {
    for (int i = thread; i < M::STAGES * 2 * 6 * (BLOCK_BYTES / 16); i += THREADS) {
      const int upper = i / (BLOCK_BYTES / 16) % 6, matrix = i / (6 * (BLOCK_BYTES / 16));
      const int column = upper < 1 ? 1 : upper < 3 ? 2 : 3;
      const int block = square_block(upper - column * (column - 1) / 2, column);
      u8* target = shared + matrix / 2 * M::STAGE_BYTES + M::INVERSE + matrix % 2 * SQUARE_BYTES;
      *(uint4*)(target + block * BLOCK_BYTES + i % (BLOCK_BYTES / 16) * 16) =
          make_uint4(0, 0, 0, 0);
    }
  }
  // By every thread that reads the stage; without bulk copies a barrier of the block must follow.
  NINFER_DEVICE void wait(int chunk) const {
#if NINFER_HAS_BULK_COPY
    barrier_wait(barrier(chunk), chunk / M::STAGES & 1);
#else
    wait_for_copies<0>();
#endif
  }
  NINFER_DEVICE ChunkMatrices matrices(int chunk) const {
    const u32 begin = stage(chunk);
    return {begin,
            begin + KEY_BYTES,
            begin + M::INVERSE,
            begin + M::SCORES,
            begin + M::VALUES,
            (const float*)shared_pointer(begin + M::FACTORS)};
  }
};

}  // namespace ninfer
