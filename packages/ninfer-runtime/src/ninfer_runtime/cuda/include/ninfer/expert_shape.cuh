// Sizes of a mixture that one kernel runs, and what its blocks make of them. All are known when it is
// compiled: a block runs through its code once, so that the code has to be short.
#pragma once
#include "ninfer/expert_groups.cuh"
#include "ninfer/weight_record.cuh"

namespace ninfer {

constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }

// Records of a row tile; the integer formats pad rows to two.
template <int F>
constexpr int records_of(int columns) {
  return F <= Q8 ? (columns + 127) / 128 * 2 : (columns + 63) / 64;
}

// Formats of the experts' gates and up matrices, of the shared one's, of down matrices likewise; D, E, A,
// I, S; blocks of the grid.
template <int F_, int FS_, int FD_, int FDS_, int D_, int E_, int A_, int I_, int S_, int BLOCKS_>
struct MixtureShape {
  static constexpr int F = F_, FS = FS_, FD = FD_, FDS = FDS_;
  static constexpr int D = D_, E = E_, A = A_, I = I_, S = S_, BLOCKS = BLOCKS_;
  static constexpr int RECORDS = records_of<F>(D), SHARED_RECORDS = records_of<FS>(D);
  static constexpr int DOWN_RECORDS = records_of<FD>(I), SHARED_DOWN_RECORDS = records_of<FDS>(S);
  static constexpr int PAIRS = I / 16, SHARED_PAIRS = S / 16, TILES = D / 16;
  static constexpr int SCORE_ROWS = (E + BLOCKS) / BLOCKS;  // of the router, of a block
  // Blocks that split K of a row tile of the shared gate.
  static constexpr int SPLIT =
      4 * SHARED_PAIRS <= BLOCKS ? 4 : 2 * SHARED_PAIRS <= BLOCKS ? 2 : 1;
  static_assert(SCORE_ROWS <= 8 && SPLIT * SHARED_PAIRS <= BLOCKS, "enough blocks");
};

// W: warps. KC: records of each of two matrices in a stage, ST: stages. KD: records of a down matrix in a
// stage, one with memory of its own; OVER: further ones in the memory of the gates. T: the most tokens,
// 1 or 8. BYTES: of shared memory.
template <int W_, int KC_, int ST_, int KD_, int OVER_, int T_, int BYTES_>
struct MixtureBlock {
  static constexpr int W = W_, KC = KC_, ST = ST_, KD = KD_, OVER = OVER_, T = T_, BYTES = BYTES_;
  static constexpr int THREADS = W * 32, TEAM = 8, TEAMS = W / TEAM;
};

// Shared memory of a block, in bytes from its beginning: barriers and factors, rings of each warp, the
// shared down matrix, x of one token with sums of warps and later rows of products, scores and later sums
// of a row tile, what results count, chosen experts, groups.
template <class M, class B>
struct MixtureMemory {
  static constexpr int GATE_STAGE =
      larger_of(2 * B::KC * RecordShape<M::F>::BYTES, RecordShape<M::FS>::BYTES);
  static constexpr int DOWN_STAGE = B::KD * RecordShape<M::FD>::BYTES;
  static constexpr int AREA = DOWN_STAGE + B::ST * GATE_STAGE;  // of a warp
  static_assert(B::OVER * DOWN_STAGE <= B::ST * GATE_STAGE, "further stages in that of the gates");
  static constexpr int BARRIERS_OF_WARP = 8 * (B::ST + 1 + B::OVER + 1);
  static constexpr int DONE = BARRIERS - 4, FLAGS = DONE - 4, FACTORS = FLAGS - 4 * COLUMNS;
  static_assert(B::W * BARRIERS_OF_WARP <= FACTORS, "room for barriers");
  static constexpr int PITCH = B::KD * 128 + 64;  // of rows of products: in different banks
  static constexpr int SHARED_DOWN = BARRIERS + B::W * AREA;
  static constexpr int X = SHARED_DOWN + M::SHARED_DOWN_RECORDS * RecordShape<M::FDS>::BYTES;
  static constexpr int X_BYTES = B::T == 1 ? (M::D + 127) / 128 * 256 : 0;
  static constexpr int SUMS = X + X_BYTES;  // 64 of each warp and token
  static constexpr int ROWS = X, ROWS_AT_ONCE = B::T == 1 ? 1 : 4;
  static constexpr int ROW_BYTES = ROWS_AT_ONCE * PITCH;  // of a warp
  static constexpr int SCORES = larger_of(SUMS + B::W * B::T * 256, ROWS + B::W * ROW_BYTES);
  static constexpr int SLOTS = B::T * M::A;
  static constexpr int PARTIAL = SCORES;  // [2][slot][16], then of the shared expert [warp][token][16]
  static constexpr int COUNTS =
      SCORES + 4 * larger_of(B::T * (M::E + 1), 2 * SLOTS * 16 + B::W * B::T * 16);
  static constexpr int CHOSEN = COUNTS + 4 * (SLOTS + B::T);
  static constexpr int GROUPS = CHOSEN + 4 * SLOTS;
  static constexpr int USED = SLOTS < M::E ? SLOTS : M::E;
  static constexpr int MOST_GROUPS = (SLOTS + (COLUMNS - 1) * USED) / COLUMNS;
  static constexpr int GROUP_BYTES =
      B::T == 1 ? 0 : 4 * (1 + 2 * MOST_GROUPS + 3 * M::E) + 16 * MOST_GROUPS;
  static_assert(GROUPS + GROUP_BYTES == B::BYTES, "what the launch reserves");
};

// Which slots a product takes: of one token each expert has one, so that nothing is to be found.
template <class M, class B>
struct Selection {
  const int* chosen;
  Groups groups;

  NINFER_DEVICE int total() const { return B::T == 1 ? M::A : *groups.total; }
  NINFER_DEVICE int expert(int group) const {
    return B::T == 1 ? chosen[group] : groups.expert[group];
  }
  NINFER_DEVICE int size(int group) const { return B::T == 1 ? 1 : groups.size[group]; }
  NINFER_DEVICE int slot(int group, int column) const {
    return B::T == 1 ? group : groups.slot[group * COLUMNS + column];
  }
};

}  // namespace ninfer
