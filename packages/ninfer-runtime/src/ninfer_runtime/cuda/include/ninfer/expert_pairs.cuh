// Gates and up matrices of experts by teams of warps, each with a ring of its own: what the down matrices
// get.
#pragma once
#include "ninfer/activation_rows.cuh"
#include "ninfer/expert_groups.cuh"
#include "ninfer/reduce.cuh"
#include "ninfer/weight_record.cuh"

namespace ninfer {

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
    u32 b[COPY ? 1 : KC][8];
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
        u32 copied[8];
        if constexpr (COPY) x.load_copy(row, first + c * KC + i, lane & 3, copied);
        const u32* of_x = COPY ? copied : b[COPY ? 0 : i];
        multiply_record<F>(gate, load_record<F>(stage + i * BYTES, lane), of_x);
        multiply_record<F>(up, load_record<F>(stage + STAGE / 2 + i * BYTES, lane), of_x);
      };
      if (valid >= KC) {  // without conditions in between, records overlap
        // Teams of four have few records each, and registers are to be left to other kernels.
        constexpr int TOGETHER = COPY && P == 4 ? larger_of(1, KC / 2) : KC;
#pragma unroll TOGETHER
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
    const float factor = x.factor(slot / slots_per_token);
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
      const float factor = record_factor<F>() * x.factor(slot / slots_per_token);
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

}  // namespace ninfer
