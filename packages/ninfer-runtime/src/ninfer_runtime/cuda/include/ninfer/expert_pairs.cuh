// Gates and up matrices of experts by warps, each with a ring of its own: what the down matrices get.
#pragma once
#include "ninfer/activation_rows.cuh"
#include "ninfer/expert_groups.cuh"
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

// What a warp computes of one kind of matrix: units [begin, end), each a row tile of gate and the same of
// up for the columns of a group.
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

// F: format. KC: records of each matrix in a stage. ST: stages.
template <int F, int KC, int ST, int STAGE>
struct PairStream {
  WarpRing<ST, STAGE> ring;
  Bank bank;
  PairUnits units;
  int chunks;       // of a row tile
  int unit, chunk;  // to be loaded next

  NINFER_DEVICE PairStream(WarpRing<ST, STAGE> ring, Bank bank, PairUnits units)
      : ring(ring), bank(bank), units(units), chunks((bank.records + KC - 1) / KC),
        unit(units.begin), chunk(0) {}

  NINFER_DEVICE void fill(int stage) {
    u32 num_bytes = 0;
    const u8 *gate = nullptr, *up = nullptr;
    if (unit < units.end) {
      constexpr int BYTES = RecordShape<F>::BYTES;
      const int record = chunk * KC;
      num_bytes = min_int(KC, bank.records - record) * BYTES;
      gate = bank.data + ((u64)units.gate_tile(unit) * bank.records + record) * BYTES;
      up = gate + (u64)units.pairs * bank.records * BYTES;
    }
    ring.fill_halves(stage, gate, up, num_bytes);
    if (++chunk == chunks) {
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

  // Sums of gate and up of one unit; rows g, g + 8, columns 2q, 2q + 1.
  NINFER_DEVICE void multiply(float* gate, float* up, const Fragments& x, int row, int lane) {
    constexpr int BYTES = RecordShape<F>::BYTES;
    u32 b[KC][8];
    const auto load = [&](int c) {
#pragma unroll
      for (int i = 0; i < KC; i++)
        if (i < bank.records - c * KC) x.load(row, c * KC + i, lane & 3, b[i]);
    };
    load(0);
#pragma unroll
    for (int i = 0; i < 4; i++) gate[i] = up[i] = 0.f;
    for (int c = 0; c < chunks; c++) {
      const int valid = bank.records - c * KC;
      const u32 stage = ring.wait();
      const auto use = [&](int i) {
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
      load(c + 1);
    }
  }
};

// The products of a unit: rows g, g + 8 and columns 2q, 2q + 1.
template <int F>
NINFER_DEVICE void finish_pair(const PairUnits& units, int unit, const Bank& bank,
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

// All units of a warp.
template <int F, int KC, int ST, int STAGE>
NINFER_DEVICE void multiply_pairs(PairStream<F, KC, ST, STAGE>& stream, const Fragments& x,
                                  const Products& products, int slots_per_token, int lane) {
  const PairUnits& units = stream.units;
  for (int unit = units.begin; unit < units.end; unit++) {
    const int group = units.group(unit), size = units.size(group);
    // Lanes of columns that do not exist read the last one; their sums are not stored.
    const int slot = units.slot(group, min_int(lane >> 2, size - 1));
    float gate[4], up[4];
    stream.multiply(gate, up, x, slot / slots_per_token, lane);
    finish_pair<F>(units, unit, stream.bank, x, products, slots_per_token, gate, up, lane);
  }
}

}  // namespace ninfer
