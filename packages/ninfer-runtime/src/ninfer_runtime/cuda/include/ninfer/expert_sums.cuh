// Row tiles of down matrices for few tokens, whose products come from other blocks of the same kernel.
#pragma once
#include "ninfer/expert_products.cuh"
#include "ninfer/expert_ring.cuh"
#include "ninfer/expert_shape.cuh"

namespace ninfer {

// Row tiles of the shared expert's down matrix, by all warps of a block; each loads its own records.
template <class M, class B>
struct SharedDown {
  static constexpr int RECORDS = M::SHARED_DOWN_RECORDS, BYTES = RecordShape<M::FDS>::BYTES;
  using Ring = BarrierRing<1, BYTES>;
  const u8* data;
  int warp;

  NINFER_DEVICE static constexpr int first_of(int warp) { return warp * RECORDS / B::W; }
  NINFER_DEVICE static constexpr int count_of(int warp) {
    return first_of(warp + 1) - first_of(warp);
  }
  NINFER_DEVICE int first() const { return first_of(warp); }
  NINFER_DEVICE int count() const { return count_of(warp); }
  NINFER_DEVICE void fill(const Ring& ring, int tile) const {
    if (ring.fills()) ring.fill(0, data + (tile * RECORDS + first()) * BYTES, count() * BYTES);
    __syncwarp();
  }
};

// Row tiles of the experts' down matrices, by pairs of warps that split K: which groups a warp has, and
// its loads, one row tile after the other.
template <class M, class B>
struct Downs {
  static constexpr int BYTES = RecordShape<M::FD>::BYTES, PAIRS = B::W / 2;
  static constexpr int COUNT = M::DOWN_RECORDS / 2, CHUNKS = (COUNT + B::KD - 1) / B::KD;
  static constexpr int STAGES = 1 + B::OVER;
  using Ring = BarrierRing<STAGES, MixtureMemory<M, B>::DOWN_STAGE>;
  const u8* data;
  const Selection<M, B>& selection;
  int warp;
  int tile, group, chunk;  // to be loaded next

  NINFER_DEVICE Downs(const u8* data, const Selection<M, B>& selection, int warp)
      : data(data), selection(selection), warp(warp), tile(blockIdx.x), group(warp / 2), chunk(0) {
    if (group >= selection.total()) tile = M::TILES;
  }

  NINFER_DEVICE int first() const { return warp % 2 * COUNT; }
  NINFER_DEVICE int number_of_groups() const {
    return (selection.total() - warp / 2 + PAIRS - 1) / PAIRS;
  }
  NINFER_DEVICE static int records_of_chunk(int chunk) {
    return COUNT % B::KD ? min_int(B::KD, COUNT - chunk * B::KD) : B::KD;
  }

  NINFER_DEVICE void pass_stage() {
    if (++chunk < CHUNKS) return;
    chunk = 0;
    group += PAIRS;
    if (group < selection.total()) return;
    group = warp / 2;
    tile += M::BLOCKS;
  }
  NINFER_DEVICE void fill(const Ring& ring, int stage) {
    if (tile >= M::TILES) return;
    const u32 row_tile = selection.expert(group) * M::TILES + tile;
    ring.fill(stage,
              data + (u64)row_tile * (M::DOWN_RECORDS * BYTES) + (first() + chunk * B::KD) * BYTES,
              records_of_chunk(chunk) * BYTES);
    pass_stage();
  }
  // The stage that has memory of its own; and the others, which an object of its own may do later.
  NINFER_DEVICE void start(const Ring& ring) {
    if (ring.fills()) fill(ring, 0);
    __syncwarp();
  }
  NINFER_DEVICE void start_others(const Ring& ring) {
    if (ring.fills()) {
      if (tile < M::TILES) pass_stage();
#pragma unroll
      for (int i = 1; i < STAGES; i++) fill(ring, i);
    }
    __syncwarp();
  }
};

// What a warp adds to a row tile: first its records of the shared expert, then its groups.
template <class M, class B>
struct TileSums {
  using Memory = MixtureMemory<M, B>;
  using Experts = Downs<M, B>;
  using Shared = SharedDown<M, B>;
  Experts experts;
  typename Experts::Ring ring;
  const float* row_scale;
  Shared shared;
  typename Shared::Ring shared_ring;
  const float* shared_row_scale;
  GatheredRows<B::KD, Memory::PITCH> rows;
  TaggedWords words;
  int tokens, lane;

  NINFER_DEVICE bool has_none() const {
    return shared.count() == 0 && experts.number_of_groups() <= 0;
  }

  // Waits for the products of a job, rows [begin, begin + number); returns to lane c what column c is
  // still to be multiplied with, `factor` for other columns.
  NINFER_DEVICE float gather(int job, int group, int chunk, int begin, int number,
                             float factor) const {
#pragma unroll 1
    for (int r = 0; r < number; r++) {
      int first = experts.selection.slot(group, begin + r) * (M::I / 2);
      first += (experts.first() + chunk * B::KD) * 32;
      int count = Experts::records_of_chunk(chunk);
      if (job < 0) {
        first = Memory::SLOTS * (M::I / 2) + (begin + r) * (M::S / 2);
        first += (shared.first() + shared.count() + job) * 32;
        count = 1;
      }
      const float of_row = rows.gather(words, r, first, count);
      if (B::T == 1 || lane == begin + r) factor = of_row;
    }
    __syncwarp();
    return factor;
  }

  // This lane's values of all records of a job, and the factors as `gather` returns them. Lanes of
  // columns that do not exist get anything; their sums are not stored.
  NINFER_DEVICE float gather_all(u32 (*b)[8], int job, int group, int chunk, int size) const {
    constexpr int AT_ONCE = Memory::ROWS_AT_ONCE;
    const int column = lane >> 2;
    float factor = 1.f;
#pragma unroll 1
    for (int begin = 0; begin < size; begin += AT_ONCE) {
      factor = gather(job, group, chunk, begin, min_int(AT_ONCE, size - begin), factor);
      if (column / AT_ONCE * AT_ONCE == begin) {
#pragma unroll
        for (int i = 0; i < B::KD; i++)
          if (i == 0 || job >= 0) rows.load(column % AT_ONCE, i, b[i]);
      }
      __syncwarp();
    }
    return factor;
  }

  // `partial`: [2][slot][16], `shared_partial`: [warp][token][16]; warps without records leave nothing
  // there. Calls `received` once all products are there.
  template <class Received>
  NINFER_DEVICE void add(int tile, float* partial, float* shared_partial, Received received) {
    const int row = lane >> 2, jobs = experts.number_of_groups() * Experts::CHUNKS;
    float total[4];
#pragma unroll 1
    for (int job = -shared.count(); job < jobs; job++) {
      const bool of_shared = job < 0;
      const int chunk = of_shared ? 0 : job % Experts::CHUNKS;
      const int group = of_shared ? 0 : experts.warp / 2 + job / Experts::CHUNKS * Experts::PAIRS;
      const int size = of_shared ? tokens : experts.selection.size(group);
      u32 held[B::T == 1 ? 1 : B::KD][8] = {};
      float factor = 1.f;
      if constexpr (B::T == 1)
        factor = gather(job, group, chunk, 0, 1, 1.f);
      else
        factor = gather_all(held, job, group, chunk, size);
      if (job + 1 == jobs) received();
      const bool begins = of_shared ? job == -shared.count() : chunk == 0;
      float acc[4] = {0.f, 0.f, 0.f, 0.f};
      const auto load = [&](int i) {
        if (B::T == 1) rows.load(0, i, held[0]);
        return held[B::T == 1 ? 0 : i];
      };
      if (of_shared) {
        const u32 stage = shared_ring.wait() + (shared.count() + job) * Shared::BYTES;
        multiply_record<M::FDS>(acc, load_record<M::FDS>(stage, lane), load(0));
        __syncwarp();
        if (job == -1) shared_ring.release();
      } else {
        const u32 stage = ring.wait();
#pragma unroll(B::T == 1 ? 1 : B::KD)
        for (int i = 0; i < B::KD; i++) {
          if (i >= Experts::records_of_chunk(chunk)) break;
          const LaneRecord<M::FD> record = load_record<M::FD>(stage + i * Experts::BYTES, lane);
          multiply_record<M::FD>(acc, record, load(i));
        }
        const int free = ring.release();
        if (ring.fills()) experts.fill(ring, free);
      }
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float of_column =
            B::T == 1 ? factor : __shfl_sync(~0u, factor, 2 * (lane & 3) + (e & 1));
        total[e] = fmaf(acc[e], of_column, begins ? 0.f : total[e]);
      }
      if (of_shared ? job < -1 : chunk + 1 < Experts::CHUNKS) continue;
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int column = 2 * (lane & 3) + (e & 1), of_tile = row + 8 * (e >> 1);
        if (column >= size) continue;
        if (of_shared)
          shared_partial[(experts.warp * B::T + column) * 16 + of_tile] =
              total[e] * scale<M::FDS>(shared_row_scale, tile * 16 + of_tile);
        else
          partial[(experts.warp % 2 * Memory::SLOTS + experts.selection.slot(group, column)) * 16 +
                  of_tile] =
              total[e] * scale<M::FD>(row_scale, experts.selection.expert(group) * M::D +
                                                     tile * 16 + of_tile);
      }
    }
  }

  template <int F>
  NINFER_DEVICE static float scale(const float* of_rows, int row) {
    const float factor = record_factor<F>();
    return F == NVFP4 || F == FP8 ? factor * of_rows[row] : factor;
  }
};

// The sum of a token's experts in a row of a tile: in their order, the shared one last. `counts`: of
// slots, then of tokens.
template <class M, class B>
NINFER_DEVICE float sum_of_experts(const float* partial, const float* shared_partial,
                                   const float* counts, int token, int row) {
  constexpr int SLOTS = MixtureMemory<M, B>::SLOTS;
  float sum = 0.f, shared = 0.f;
#pragma unroll(M::A <= 8 ? M::A : 1)
  for (int a = 0; a < M::A; a++) {
    const int slot = token * M::A + a;
    const float* p = partial + slot * 16 + row;
    sum = fmaf(counts[slot], p[0] + p[SLOTS * 16], sum);
  }
#pragma unroll
  for (int w = 0; w < B::W; w++)
    if (SharedDown<M, B>::count_of(w) > 0) shared += shared_partial[(w * B::T + token) * 16 + row];
  return fmaf(counts[SLOTS + token], shared, sum);
}

}  // namespace ninfer
