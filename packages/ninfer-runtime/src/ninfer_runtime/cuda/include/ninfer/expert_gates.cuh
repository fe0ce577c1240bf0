// Gates and up matrices of the chosen experts by teams of eight warps that split K, each with a ring of
// its own. The products go to all blocks.
#pragma once
#include "ninfer/expert_products.cuh"
#include "ninfer/expert_ring.cuh"
#include "ninfer/expert_shape.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

// A lane's part of x for the records of its warp: of one token from shared memory, so that few registers
// are used; of several from registers, as columns of products are always the same tokens.
struct SharedX {
  static constexpr bool UNROLL = false;
  u32 first;  // where the first record's lie

  NINFER_DEVICE void load(int record, u32* b) const {
    const u32 p = first + record * 128;
    unpack_fragment(load_shared_16(p), load_shared_16(p + 64), b);
  }
};
template <int RECORDS>
struct HeldX {
  static constexpr bool UNROLL = true;
  u32 held[RECORDS][8];

  // `x`: the first record in global memory, of `x_rows` rows; `count` of them exist.
  NINFER_DEVICE HeldX(const u8* x, int x_rows, int tokens, int count, int lane) {
    x += min_int(lane >> 2, tokens - 1) * 64 + (lane & 3) * 16;
#pragma unroll
    for (int i = 0; i < RECORDS; i++) {
      if (i >= count) break;
      const u8* p = x + i * x_rows * 128;
      unpack_fragment(load_global_16(p), load_global_16(p + x_rows * 64), held[i]);
    }
  }
  NINFER_DEVICE void load(int record, u32* b) const {
#pragma unroll
    for (int i = 0; i < 8; i++) b[i] = held[record][i];
  }
};

// A unit is a row tile of a gate and the same of its up matrix, for the columns of a group. A team takes
// units [unit, end).
template <class M, class B>
struct Gates {
  using Memory = MixtureMemory<M, B>;
  static constexpr int BYTES = RecordShape<M::F>::BYTES, STAGE = Memory::GATE_STAGE;
  static constexpr int TILE_BYTES = M::RECORDS * BYTES;
  static constexpr bool EVEN = M::RECORDS % (B::TEAM * B::KC) == 0;
  // The most records of a warp, in whole stages.
  static constexpr int MOST = divide_up(divide_up(M::RECORDS, B::TEAM), B::KC) * B::KC;
  using Ring = BarrierRing<B::ST, STAGE>;
  const u8* data;
  const float* row_scale;
  const Selection<M, B>& selection;
  int part, unit, end;
  int next_unit, chunk;  // to be loaded next

  NINFER_DEVICE Gates(const u8* data, const float* row_scale, const Selection<M, B>& selection,
                      int warp)
      : data(data), row_scale(row_scale), selection(selection), part(warp % B::TEAM), chunk(0) {
    constexpr int TEAMS = M::BLOCKS * B::TEAMS;
    const int team = blockIdx.x * B::TEAMS + warp / B::TEAM, total = selection.total() * M::PAIRS;
    unit = next_unit = team * total / TEAMS;
    end = (team + 1) * total / TEAMS;
  }

  NINFER_DEVICE int first() const { return part * M::RECORDS / B::TEAM; }
  NINFER_DEVICE int count() const {
    return EVEN ? M::RECORDS / B::TEAM : (part + 1) * M::RECORDS / B::TEAM - first();
  }
  NINFER_DEVICE int chunks() const { return (count() + B::KC - 1) / B::KC; }
  NINFER_DEVICE int tile(int unit) const {
    return selection.expert(unit / M::PAIRS) * (2 * M::PAIRS) + unit % M::PAIRS;
  }

  NINFER_DEVICE void fill(const Ring& ring, int stage) {
    if (next_unit >= end) return;
    const int at = chunk * B::KC, records = EVEN ? B::KC : min_int(B::KC, count() - at);
    const u8* gate = data + (u64)(u32)tile(next_unit) * TILE_BYTES + (first() + at) * BYTES;
    ring.fill_halves(stage, gate, gate + M::PAIRS * TILE_BYTES, max(records, 0) * BYTES);
    if (++chunk < chunks()) return;
    chunk = 0;
    next_unit++;
  }
  NINFER_DEVICE void start(const Ring& ring) {
    if (ring.fills()) {
#pragma unroll
      for (int i = 0; i < B::ST; i++) fill(ring, (ring.slot + i) % B::ST);
    }
    __syncwarp();
  }

  // Sums of gate and up of one unit, this warp's part of K; rows g, g + 8, columns 2q, 2q + 1, which are
  // tokens. x.load(i, b): this lane's values of the i-th record.
  template <class X>
  NINFER_DEVICE void multiply(float (*acc)[4], Ring& ring, const X& x, int lane) {
#pragma unroll(X::UNROLL ? MOST / B::KC : 1)
    for (int c = 0; c < MOST / B::KC; c++) {
      const int records = EVEN ? B::KC : min_int(B::KC, count() - c * B::KC);
      if (!EVEN && records <= 0) break;
      const u32 stage = ring.wait();
#pragma unroll(X::UNROLL ? B::KC : 1)
      for (int i = 0; i < B::KC; i++) {
        if (!EVEN && i >= records) break;
        u32 b[8];
        x.load(c * B::KC + i, b);
        multiply_record<M::F>(acc[0], load_record<M::F>(stage + i * BYTES, lane), b);
        multiply_record<M::F>(acc[1], load_record<M::F>(stage + STAGE / 2 + i * BYTES, lane), b);
      }
      const int free = ring.release();
      if (ring.fills()) fill(ring, free);
    }
  }

  // All units. `sums`: of this team, 2 times [warp][gate, up][token][16]; `factors`: of tokens.
  template <class X>
  NINFER_DEVICE void run(Ring& ring, const X& x, float* sums, const float* factors,
                         const TaggedWords& words, int lane) {
    constexpr int SUMS = B::T * 16;
    const int thread = threadIdx.x % (B::TEAM * 32);
    int turn = 0;  // the array alternates, so that one barrier is enough
    for (; unit < end; unit++, turn ^= 1) {
      const int group = unit / M::PAIRS;
      float acc[2][4] = {};
      multiply(acc, ring, x, lane);
      float* const of_unit = sums + turn * (B::TEAM * 2 * SUMS);
#pragma unroll
      for (int m = 0; m < 2; m++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int column = 2 * (lane & 3) + (e & 1), row = (lane >> 2) + 8 * (e >> 1);
          if (column < B::T) of_unit[((part * 2 + m) * B::T + column) * 16 + row] = acc[m][e];
        }
      synchronize_threads(threadIdx.x / (B::TEAM * 32) + 1, B::TEAM * 32);
      if (thread < selection.size(group) * 16) finish(of_unit, group, factors, words, thread);
    }
  }

  // A product from the sums of the team, in the order of its warps, by a thread for each.
  NINFER_DEVICE void finish(const float* sums, int group, const float* factors,
                            const TaggedWords& words, int thread) const {
    const int slot = selection.slot(group, thread / 16), token = slot / M::A, row = thread % 16;
    const int k = unit % M::PAIRS * 16 + row;
    float gate = 0.f, up = 0.f;
#pragma unroll
    for (int w = 0; w < B::TEAM; w++) {
      gate += sums[(w * 2 * B::T + token) * 16 + row];
      up += sums[((w * 2 + 1) * B::T + token) * 16 + row];
    }
    const float factor = record_factor<M::F>() * factors[token];
    gate *= factor;
    up *= factor;
    if constexpr (M::F == NVFP4 || M::F == FP8) {
      const float* scale = row_scale + tile(unit) * 16 + row;
      gate *= scale[0];
      up *= scale[M::PAIRS * 16];
    }
    const float h = silu(gate) * up;
    send_product<M::FD == BF16>(words, slot * (M::I / 2), k, h, largest_of_16(fabsf(h)));
  }
};

}  // namespace ninfer
