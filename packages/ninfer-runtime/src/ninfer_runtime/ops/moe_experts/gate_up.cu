// Gates and up matrices of a mixture of experts for few tokens: what the down matrices get. Each expert
// that is needed is read once.
#include "ninfer/activation_rows.cuh"
#include "ninfer/expert_groups.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/reduce.cuh"
#include "ninfer/weight_record.cuh"

namespace ninfer {

// Where value k of a row lies if rows follow one another: [record][half][q][8 values].
NINFER_DEVICE int fragment_place(int k) {
  const int step = k >> 4 & 1, upper = k >> 3 & 1, q = k >> 1 & 3;
  return (k >> 5) * 32 + q * 8 + step * 4 + upper * 2 + (k & 1);
}

// One block puts a row into fragment order, with zeros up to `padded`; f16 or, with KEEP_BF16, bf16.
template <bool KEEP_BF16>
__global__ __launch_bounds__(256) void moe_rows_kernel(const u16* x, i64 stride, u16* fragments,
                                                       float* factors, int size, int padded) {
  __shared__ float partial[8];
  wait_for_previous_kernels();
  let_next_kernel_start();
  const u16* row = x + blockIdx.x * stride;
  float factor = 1.f;
  if constexpr (!KEEP_BF16) {
    float largest = 0.f;
    for (int k = threadIdx.x; k < size; k += 256)
      largest = fmaxf(largest, fabsf(bf16_to_float(row[k])));
    factor = packing_factor(block_max<256>(largest, partial, threadIdx.x));
  }
  if (threadIdx.x == 0) factors[blockIdx.x] = factor;
  const float inverse = 1.f / factor;
  u16* target = fragments + (i64)blockIdx.x * padded;
  for (int k = threadIdx.x; k < padded; k += 256) {
    u16 word = k < size ? row[k] : 0;
    if constexpr (!KEEP_BF16) word = float_to_f16(bf16_to_float(word) * inverse);
    target[fragment_place(k)] = word;
  }
}

// Where the products go that a down matrix gets: [row][K] in fragment order, f16 with a power of two
// taken out of every 16 values, or bf16 if `keep_bf16`.
struct Products {
  u16* data;
  float* factors;  // [row][K / 16]
  int size;        // K
  int keep_bf16;

  // Stores value `k` of a row; `largest` is that of the 16 values of its step.
  NINFER_DEVICE void store(int row, int k, float h, float largest) const {
    const float factor = keep_bf16 ? 1.f : packing_factor(largest);
    const u16 word = keep_bf16 ? float_to_bf16(h) : float_to_f16(h * (1.f / factor));
    data[(i64)row * size + fragment_place(k)] = word;
    if (k % 16 == 0) factors[row * (size / 16) + k / 16] = factor;
  }
};

// What a team of warps computes of one kind of matrix: units [begin, end), each a row tile of gate
// and the same of up for the columns of a group.
struct PairUnits {
  int begin, end;
  int pairs;            // row tiles of a gate matrix
  int groups_per_pair;  // shared expert: groups of tokens; 0: units of routed experts
  int tokens;
  const Groups* groups;

  NINFER_DEVICE int pair(int unit) const {
    return groups_per_pair ? unit / groups_per_pair : unit % pairs;
  }
  NINFER_DEVICE int group(int unit) const {
    return groups_per_pair ? unit % groups_per_pair : unit / pairs;
  }
  NINFER_DEVICE int gate_tile(int unit) const {
    const int expert = groups_per_pair ? 0 : groups->expert[group(unit)];
    return expert * 2 * pairs + pair(unit);
  }
  NINFER_DEVICE int size(int group) const {
    return groups_per_pair ? min_int(COLUMNS, tokens - group * COLUMNS) : groups->size[group];
  }
  NINFER_DEVICE int slot(int group, int column) const {
    return groups_per_pair ? group * COLUMNS + column : groups->slot[group * COLUMNS + column];
  }
};

// F: format. P: warps of a team, which split K. KC: records of each matrix in a stage. ST: stages.
template <int F, int P, int KC, int ST, int STAGE>
struct PairStream {
  WarpRing<ST, STAGE> ring;
  Bank bank;
  PairUnits units;
  int first, count, chunks;  // this warp's records of a row tile
  int unit, chunk;           // to be loaded next

  NINFER_DEVICE PairStream(WarpRing<ST, STAGE> ring, Bank bank, PairUnits units, int part)
      : ring(ring), bank(bank), units(units), unit(units.begin), chunk(0) {
    first = part * bank.records / P;
    count = (part + 1) * bank.records / P - first;
    chunks = (count + KC - 1) / KC;
  }

  NINFER_DEVICE void fill(int stage) {
    u32 num_bytes = 0;
    const u8 *gate = nullptr, *up = nullptr;
    if (unit < units.end && chunks > 0) {
      constexpr int BYTES = RecordShape<F>::BYTES;
      const int record = first + chunk * KC;
      num_bytes = min_int(KC, count - chunk * KC) * BYTES;
      gate = bank.data + ((u64)units.gate_tile(unit) * bank.records + record) * BYTES;
      up = gate + (u64)units.pairs * bank.records * BYTES;
    }
    ring.fill_halves(stage, gate, up, num_bytes);
    if (++chunk >= chunks) {
      chunk = 0;
      unit++;
    }
  }

  NINFER_DEVICE void start() {
    if (ring.fills()) {
#pragma unroll
      for (int i = 0; i < ST; i++) fill(i);
    }
    __syncwarp();
  }

  // Sums of gate and up of one unit, this warp's part of K; rows g, g + 8, columns 2q, 2q + 1.
  template <bool COPY>
  NINFER_DEVICE void multiply(float* gate, float* up, const Fragments& x, int row, int lane) {
    constexpr int BYTES = RecordShape<F>::BYTES;
    u32 b[KC][8];
    const auto load = [&](int c) {
#pragma unroll
      for (int i = 0; i < KC; i++)
        if (i < count - c * KC) x.load(row, first + c * KC + i, lane & 3, b[i]);
    };
    if constexpr (!COPY) load(0);
#pragma unroll
    for (int i = 0; i < 4; i++) gate[i] = up[i] = 0.f;
    for (int c = 0; c < chunks; c++) {
      const int valid = count - c * KC;
      const u32 stage = ring.wait();
      const auto use = [&](int i) {
        if constexpr (COPY) x.load_copy(row, first + c * KC + i, lane & 3, b[i]);
        multiply_record<F>(gate, load_record<F>(stage + i * BYTES, lane), b[i]);
        multiply_record<F>(up, load_record<F>(stage + STAGE / 2 + i * BYTES, lane), b[i]);
      };
      if (valid >= KC) {  // without conditions in between, records overlap
#pragma unroll
        for (int i = 0; i < KC; i++) use(i);
      } else {
#pragma unroll
        for (int i = 0; i < KC; i++)
          if (i < valid) use(i);
      }
      const int free = ring.release();
      if (ring.fills()) fill(free);
      if constexpr (!COPY) load(c + 1);
    }
  }
};

// What the team of a warp is called, and where it leaves sums: [P][2][columns][16] two times.
struct Team {
  int part, barrier, thread, columns;
  float* sums;
};

// A unit's products by one warp that has the whole sums: rows g, g + 8 and columns 2q, 2q + 1.
template <int F>
NINFER_DEVICE void finish_alone(const PairUnits& units, int unit, const Bank& bank,
                                const Fragments& x, const Products& products, int slots_per_token,
                                const float* gate, const float* up, int lane) {
  const int group = units.group(unit), size = units.size(group), pair = units.pair(unit);
  const int g = lane >> 2, q = lane & 3;
  float scale[2][2] = {{record_factor<F>(), record_factor<F>()},
                       {record_factor<F>(), record_factor<F>()}};
  if (bank.row_scale) {
    const float* of_rows = bank.row_scale + units.gate_tile(unit) * 16 + g;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      scale[0][h] *= of_rows[8 * h];
      scale[1][h] *= of_rows[units.pairs * 16 + 8 * h];
    }
  }
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const bool valid = 2 * q + c < size;
    const int slot = units.slot(group, valid ? 2 * q + c : 0);
    float factor = 1.f;
    if constexpr (F != BF16) factor = x.factor(slot / slots_per_token);
    float h[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
      h[i] = silu(gate[2 * i + c] * scale[0][i] * factor) * (up[2 * i + c] * scale[1][i] * factor);
    float largest = fmaxf(fabsf(h[0]), fabsf(h[1]));
#pragma unroll
    for (int d = 4; d < 32; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
    if (!valid) continue;
    products.store(slot, pair * 16 + g, h[0], largest);
    products.store(slot, pair * 16 + g + 8, h[1], largest);
  }
}

// A unit's products by a team, whose threads sum up one element each, in the order of the warps.
template <int F, int P>
NINFER_DEVICE void finish_together(const PairUnits& units, int unit, const Bank& bank,
                                   const Fragments& x, const Products& products,
                                   int slots_per_token, const float* sums, const Team& team) {
  const int group = units.group(unit), size = units.size(group), columns = team.columns;
#pragma unroll
  for (int i = 0; i < COLUMNS * 16; i += P * 32) {
    const int column = (i + team.thread) / 16, row = team.thread % 16;
    const bool valid = column < size;
    float gate = 0.f, up = 0.f, h = 0.f;
    int slot = 0;
    if (valid) {
      slot = units.slot(group, column);
#pragma unroll
      for (int w = 0; w < P; w++) {
        gate += sums[(w * 2 * columns + column) * 16 + row];
        up += sums[((w * 2 + 1) * columns + column) * 16 + row];
      }
      float factor = record_factor<F>();
      if constexpr (F != BF16) factor *= x.factor(slot / slots_per_token);
      gate *= factor;
      up *= factor;
      if (bank.row_scale) {
        const float* scale = bank.row_scale + units.gate_tile(unit) * 16 + row;
        gate *= scale[0];
        up *= scale[units.pairs * 16];
      }
      h = silu(gate) * up;
    }
    const float largest = warp_max<16>(fabsf(h));
    if (valid) products.store(slot, units.pair(unit) * 16 + row, h, largest);
  }
}

// All units of a team.
template <int F, int P, int KC, int ST, int STAGE, bool COPY>
NINFER_DEVICE void multiply_pairs(PairStream<F, P, KC, ST, STAGE>& stream, const Fragments& x,
                                  const Products& products, int slots_per_token, const Team& team,
                                  int lane) {
  const PairUnits& units = stream.units;
  int turn = 0;
  for (int unit = units.begin; unit < units.end; unit++, turn ^= 1) {
    const int group = units.group(unit), size = units.size(group);
    // Lanes of columns that do not exist read the last one; their sums are not stored.
    const int slot = units.slot(group, min_int(lane >> 2, size - 1));
    float acc[2][4];
    stream.template multiply<COPY>(acc[0], acc[1], x, slot / slots_per_token, lane);
    if constexpr (P == 1) {
      finish_alone<F>(units, unit, stream.bank, x, products, slots_per_token, acc[0], acc[1], lane);
    } else {
      // The array alternates, so that one barrier is enough.
      float* sums = team.sums + turn * (P * 2 * team.columns * 16);
#pragma unroll
      for (int m = 0; m < 2; m++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int column = 2 * (lane & 3) + (e & 1), row = (lane >> 2) + 8 * (e >> 1);
          if (column < team.columns)
            sums[((team.part * 2 + m) * team.columns + column) * 16 + row] = acc[m][e];
        }
      synchronize_threads(team.barrier, P * 32);
      finish_together<F, P>(units, unit, stream.bank, x, products, slots_per_token, sums, team);
    }
  }
}

// F, FS: formats of the experts and of the shared one. W: warps. P: warps that split K. KC: records of
// each matrix in a stage. ST: stages. MB: blocks that an SM must be able to hold. COPY: x is copied to
// shared memory. The first `shared_blocks` blocks compute the shared expert.
template <int F, int FS, int W, int P, int KC, int ST, int MB, bool COPY>
__global__ __launch_bounds__(W * 32, MB) void moe_gate_up_kernel(
    const u8* x, const float* x_factors, const u8* shared_x, const float* shared_x_factors,
    u32 row_bytes, u32 record_bytes, u32 half_bytes, u32 copied_bytes, const int* chosen,
    const u8* __restrict__ bank, const float* __restrict__ bank_scale,
    const u8* __restrict__ shared_bank, const float* __restrict__ shared_bank_scale, u16* products,
    float* product_factors, u16* shared_products, float* shared_product_factors, int tokens,
    int per_token, int experts, int records, int shared_records, int inner, int shared_inner,
    int keep_bf16, int shared_keep_bf16, int most_groups, int shared_blocks) {
  constexpr int BYTES = RecordShape<F>::BYTES, SHARED_BYTES = RecordShape<FS>::BYTES;
  constexpr int STAGE = 2 * larger_of(KC * BYTES, SHARED_BYTES);
  constexpr int SHARED_KC = STAGE / 2 / SHARED_BYTES, TEAMS = W / P;
  const int lane = threadIdx.x & 31, warp = warp_index(), block = blockIdx.x;
  const int columns = min_int(tokens, COLUMNS), my_team = warp / P;

  // Shared memory: barriers, rings, x, sums, groups.
  u8* const copy = dynamic_shared + BARRIERS + W * ST * STAGE;
  float* const sums = (float*)(copy + copied_bytes);
  constexpr int SUMS = P > 1 ? 2 * W * 2 * 16 : 0;  // for each column
  Groups groups((u8*)(sums + SUMS * columns), most_groups, experts);
  const u32 shared = shared_address(dynamic_shared);
  WarpRing<ST, STAGE> ring(shared + BARRIERS + warp * (ST * STAGE), shared + warp * (ST * 8), lane);
  const Team team = {warp % P, my_team + 1, (int)threadIdx.x % (P * 32), columns,
                     sums + SUMS / TEAMS * columns * my_team};
  static_assert(W * ST * 8 + COLUMNS * 4 <= BARRIERS, "room behind the barriers");
  float* const copied_factors = (float*)(dynamic_shared + BARRIERS) - COLUMNS;
  const auto copy_rows = [&](const u8* from, const float* factors) {
    if constexpr (COPY) {
      begin_copy<W * 32>(copy, from, 1, copied_bytes, 0);
      if (factors && threadIdx.x < tokens) copied_factors[threadIdx.x] = factors[threadIdx.x];
      finish_copies();
    }
  };
  const auto units_of = [&](u32 place, u32 blocks, u32 total, int pairs, int of_tokens) {
    const u32 index = place * TEAMS + my_team, teams = blocks * TEAMS;
    return PairUnits{(int)(index * total / teams), (int)((index + 1) * total / teams), pairs,
                     of_tokens, tokens, &groups};
  };

  if (block < shared_blocks) {
    const int of_tokens = (tokens + COLUMNS - 1) / COLUMNS, pairs = shared_inner / 16;
    PairStream<FS, P, SHARED_KC, ST, STAGE> stream(
        ring, {shared_bank, shared_bank_scale, shared_records},
        units_of(block, shared_blocks, pairs * of_tokens, pairs, of_tokens), team.part);
    stream.start();
    wait_for_previous_kernels();
    let_next_kernel_start();
    copy_rows(shared_x, shared_x_factors);
    const Fragments rows = {shared_x, row_bytes, record_bytes, half_bytes,
                            COPY && shared_x_factors ? copied_factors : shared_x_factors,
                            shared_address(copy)};
    const Products target = {shared_products, shared_product_factors, shared_inner,
                             shared_keep_bf16};
    multiply_pairs<FS, P, SHARED_KC, ST, STAGE, COPY>(stream, rows, target, 1, team, lane);
  } else {
    wait_for_previous_kernels();
    let_next_kernel_start();
    groups.find<W * 32>(chosen, tokens, per_token, experts);
    const int pairs = inner / 16;
    PairStream<F, P, KC, ST, STAGE> stream(
        ring, {bank, bank_scale, records},
        units_of(block - shared_blocks, gridDim.x - shared_blocks, *groups.total * pairs, pairs, 0),
        team.part);
    stream.start();
    copy_rows(x, x_factors);
    const Fragments rows = {x, row_bytes, record_bytes, half_bytes,
                            COPY && x_factors ? copied_factors : x_factors, shared_address(copy)};
    const Products target = {products, product_factors, inner, keep_bf16};
    multiply_pairs<F, P, KC, ST, STAGE, COPY>(stream, rows, target, per_token, team, lane);
  }
}

}  // namespace ninfer
