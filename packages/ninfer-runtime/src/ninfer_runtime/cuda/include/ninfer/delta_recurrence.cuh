// The recurrence of Gated DeltaNet token by token: its inputs, and what a token does to a row of a
// state.
//
// What is recorded was written before the kernel could start, what is new by the kernels just before
// it: they are loaded apart, so that the one can be on its way while the other is computed.
#pragma once
#include "ninfer/delta_tokens.cuh"
#include "ninfer/elements.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

// What the sequence of a block does.
struct Task {
  Tokens tokens;
  i64 source, destination;  // of the head's state, in elements
  i64 first;                // row of the first new token in u, a, b, z and out
  u32 head, key_head;
  bool owns_key;  // whether it records queries and keys
  int stored;     // tokens that the stored state contains

  // Read past the first-level cache, which may hold what was there before.
  NINFER_DEVICE void find(u16* records, const int* sources, const int* destinations,
                          const int* positions, const int* replays, const int* new_columns,
                          const int* commits, u32 sequence, u32 own_head, u32 heads, u32 key_heads,
                          int columns, int ring, bool keeps) {
    const u32 record_width = (2 * key_heads + heads) * HEAD + 2 * heads;
    const int from = __ldcg(sources + sequence), to = __ldcg(destinations + sequence);
    const int position = __ldcg(positions + sequence), replayed = __ldcg(replays + sequence);
    const int committed = __ldcg(commits + sequence), valid = __ldcg(new_columns + sequence);
    stored = replayed + committed;
    first = (i64)sequence * columns;
    head = own_head;
    key_head = head / (heads / key_heads);
    owns_key = head % (heads / key_heads) == 0;
    source = ((i64)from * heads + head) * (HEAD * HEAD);
    destination = ((i64)to * heads + head) * (HEAD * HEAD);
    tokens = Tokens{records + (i64)from * ring * record_width,
                    records + (i64)to * ring * record_width,
                    record_width,
                    ring,
                    position % ring,
                    position,
                    replayed,
                    replayed + valid,
                    from != to,
                    keeps};
  }
};

// Four weights as they lie in memory: taken apart they would be in four registers each.
template <class W>
struct WeightQuad;
template <>
struct WeightQuad<float> {
  float4 v;
  NINFER_DEVICE void expand(float (&w)[4]) const { w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w; }
};
template <>
struct WeightQuad<bf16> {
  uint2 v;
  NINFER_DEVICE void expand(float (&w)[4]) const {
    const float2 low = pair_of(v.x), high = pair_of(v.y);
    w[0] = low.x, w[1] = low.y, w[2] = high.x, w[3] = high.y;
  }
};

template <class W>
NINFER_DEVICE WeightQuad<W> load_quad(const W* p) {
  return *(const WeightQuad<W>*)p;
}

// Four channels of the convolution, of one lane: a token and the three before it.
template <class W>
struct Channels {
  WeightQuad<W> weight[TAPS];
  uint2 words[TAPS];

  // `channel`: the first of the four.
  NINFER_DEVICE void load_weight(const W* convolution, u32 channels, u32 channel) {
#pragma unroll
    for (int j = 0; j < TAPS; j++)
      weight[j] = load_quad(convolution + j * channels + channel);
  }
  NINFER_DEVICE void load_recorded(const Tokens& tokens, int token, u32 channel) {
#pragma unroll
    for (int j = 0; j < TAPS; j++)
      words[j] = tokens.recorded_quad(token + j - (TAPS - 1), channel);
  }
  // `first`: row of the first new token.
  NINFER_DEVICE void load_new(const Tokens& tokens, int token, const u16* u, i64 first, i64 stride,
                              u32 channel) {
    const int column = token - (TAPS - 1) - tokens.replayed;
    const u16* place = u + (first + column) * stride + channel;
#pragma unroll
    for (int j = 0; j < TAPS; j++, place += stride)
      if (column + j >= 0) words[j] = *(const uint2*)place;
  }
  NINFER_DEVICE void keep(const Tokens& tokens, int token, u32 channel) const {
    if (!tokens.is_kept(token)) return;
    u32* record = (u32*)(tokens.kept + tokens.record(token) + channel);
    record[0] = words[TAPS - 1].x;
    record[1] = words[TAPS - 1].y;
  }
  // Convolution and SiLU, rounded to bf16.
  NINFER_DEVICE float4 convolve() const {
    float y[4] = {};
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
      const float2 low = pair_of(words[j].x), high = pair_of(words[j].y);
      const float x[4] = {low.x, low.y, high.x, high.y};
      float w[4];
      weight[j].expand(w);
#pragma unroll
      for (int c = 0; c < 4; c++) y[c] = fmaf(w[c], x[c], y[c]);
    }
#pragma unroll
    for (int c = 0; c < 4; c++) y[c] = bf16_to_float(float_to_bf16(silu(y[c])));
    return make_float4(y[0], y[1], y[2], y[3]);
  }
};

// Decay and step size of one token and head, loaded like the channels.
struct Gates {
  i64 live_a, live_b;  // where those of the token are, if it is new
  u16 a, b;
  float a_log, bias;  // of the decay

  NINFER_DEVICE void load_weight(const float* a_logs, const float* dt_biases, u32 head) {
    a_log = a_logs[head];
    bias = dt_biases[head];
  }
  // `place`: of a in a record; b is `heads` behind it.
  NINFER_DEVICE void load_recorded(const Tokens& tokens, int token, i64 first, i64 a_stride,
                                   i64 b_stride, u32 head, u32 place, u32 heads) {
    live_a = (first + token - tokens.replayed) * a_stride + head;
    live_b = (first + token - tokens.replayed) * b_stride + head;
    if (!tokens.is_recorded(token)) return;
    const u16* record = tokens.records + tokens.record(token) + place;
    a = __ldcg(record);
    b = __ldcg(record + heads);
  }
  NINFER_DEVICE void load_new(const Tokens& tokens, int token, const u16* a_rows,
                              const u16* b_rows) {
    if (token < tokens.replayed) return;
    a = a_rows[live_a];
    b = b_rows[live_b];
  }
  NINFER_DEVICE void keep(const Tokens& tokens, int token, u32 place, u32 heads) const {
    if (!tokens.is_kept(token)) return;
    u16* record = tokens.kept + tokens.record(token) + place;
    record[0] = a;
    record[heads] = b;
  }
  NINFER_DEVICE float decay() const {
    return __expf(-__expf(a_log) * softplus(bf16_to_float(a) + bias));
  }
  NINFER_DEVICE float step_size() const { return sigmoid(bf16_to_float(b)); }
};

// A vector, of which each lane of a warp has four elements, divided by its length.
NINFER_DEVICE float4 unit_of(float4 v, float factor) {
  const float squares = warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w);
  const float scale = factor * rsqrtf(squares + UNIT_EPS);
  return make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
}

// What one of LANES lanes holds of a row of the state: 4 values each, 4 * LANES apart.
template <int LANES>
struct RowPart {
  static constexpr int QUADS = HEAD / LANES / 4;
  float s[4 * QUADS];

  NINFER_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < 4 * QUADS; i++) s[i] = 0.f;
  }
  NINFER_DEVICE void load(const float* part) { load_quads(s, part); }
  NINFER_DEVICE void store(float* part) const {
#pragma unroll
    for (int j = 0; j < QUADS; j++)
      *(float4*)(part + 4 * LANES * j) =
          make_float4(s[4 * j], s[4 * j + 1], s[4 * j + 2], s[4 * j + 3]);
  }
  static NINFER_DEVICE void load_quads(float* to, const float* part) {
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
      const float4 v = *(const float4*)(part + 4 * LANES * j);
      to[4 * j] = v.x;
      to[4 * j + 1] = v.y;
      to[4 * j + 2] = v.z;
      to[4 * j + 3] = v.w;
    }
  }

  // One token; `key` begins with the values of this lane.
  NINFER_DEVICE void advance(const float* key, float decay, float beta, float value) {
    float k[4 * QUADS], dot[4] = {};
    load_quads(k, key);
#pragma unroll
    for (int i = 0; i < 4 * QUADS; i++) {
      s[i] *= decay;
      dot[i % 4] = fmaf(s[i], k[i], dot[i % 4]);
    }
    const float seen = warp_sum<LANES>((dot[0] + dot[1]) + (dot[2] + dot[3]));
    const float error = beta * (value - seen);
#pragma unroll
    for (int i = 0; i < 4 * QUADS; i++) s[i] = fmaf(error, k[i], s[i]);
  }
  // The product with a query, in all lanes of the row.
  NINFER_DEVICE float read(const float* query) const {
    float y[4] = {};
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
      const float4 v = *(const float4*)(query + 4 * LANES * j);
      y[0] = fmaf(s[4 * j], v.x, y[0]);
      y[1] = fmaf(s[4 * j + 1], v.y, y[1]);
      y[2] = fmaf(s[4 * j + 2], v.z, y[2]);
      y[3] = fmaf(s[4 * j + 3], v.w, y[3]);
    }
    return warp_sum<LANES>((y[0] + y[1]) + (y[2] + y[3]));
  }
};

}  // namespace ninfer
