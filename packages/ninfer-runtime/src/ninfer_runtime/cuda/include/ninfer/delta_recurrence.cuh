// The recurrence of Gated DeltaNet token by token: its inputs, and what a token does to a row of a
// state.
#pragma once
#include "ninfer/delta_tokens.cuh"
#include "ninfer/elements.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

template <class W>
NINFER_DEVICE float2 load_weight_pair(const W* p) {
  return make_float2(to_float(p[0]), to_float(p[1]));
}

// Two channels of the convolution of one block, from the records or the new tokens.
template <int CHUNK>
struct Channels {
  const u16* live;  // these channels of the first new token
  i64 live_stride;
  u32 channel;  // in a record
  bool owns;    // whether this thread records them
  u32 window[TAPS - 1], ahead[CHUNK];

  NINFER_DEVICE u32 load(const Tokens& tokens, int token) const {
    if (token >= tokens.replayed)
      return *(const u32*)(live + (token - tokens.replayed) * live_stride);
    if (tokens.position + token < 0) return 0;
    return *(const u32*)(tokens.records + tokens.record(token) + channel);
  }
  NINFER_DEVICE void load_history(const Tokens& tokens) {
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++) window[j] = load(tokens, j - (TAPS - 1));
  }
  // All loads at once, so that their times do not add up.
  NINFER_DEVICE void load_ahead(const Tokens& tokens, int begin) {
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
      if (begin + i < tokens.total) ahead[i] = load(tokens, begin + i);
  }
  NINFER_DEVICE void keep(const Tokens& tokens, int token, u32 words) const {
    if (owns && tokens.is_kept(token))
      *(u32*)(tokens.kept + tokens.record(token) + channel) = words;
  }
  NINFER_DEVICE void keep_history(const Tokens& tokens) const {
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++) keep(tokens, j - (TAPS - 1), window[j]);
  }

  // Convolution and SiLU of what was loaded ahead, rounded to bf16, into `target` [token][stride].
  NINFER_DEVICE void convolve(const Tokens& tokens, const float2* w, float* target, int stride,
                              int begin) {
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
      if (begin + i >= tokens.total) break;
      keep(tokens, begin + i, ahead[i]);
      float2 y = make_float2(0.f, 0.f);
#pragma unroll
      for (int j = 0; j < TAPS; j++) {
        const float2 x = pair_of(j < TAPS - 1 ? window[j] : ahead[i]);
        y.x = fmaf(w[j].x, x.x, y.x);
        y.y = fmaf(w[j].y, x.y, y.y);
      }
#pragma unroll
      for (int j = 0; j < TAPS - 2; j++) window[j] = window[j + 1];
      window[TAPS - 2] = ahead[i];
      y.x = bf16_to_float(float_to_bf16(silu(y.x)));
      y.y = bf16_to_float(float_to_bf16(silu(y.y)));
      *(float2*)(target + i * stride) = y;
    }
  }
};

// Decay and step size of one token, loaded ahead like the channels.
struct Gates {
  const u16 *live_a, *live_b;  // of the first new token and this head
  i64 a_stride, b_stride;
  u32 place_a, place_b;  // in a record
  u16 a, b;

  NINFER_DEVICE void load(const Tokens& tokens, int token) {
    if (token >= tokens.total) return;
    if (token >= tokens.replayed) {
      a = live_a[(token - tokens.replayed) * a_stride];
      b = live_b[(token - tokens.replayed) * b_stride];
    } else if (tokens.position + token >= 0) {
      a = tokens.records[tokens.record(token) + place_a];
      b = tokens.records[tokens.record(token) + place_b];
    }
  }
  NINFER_DEVICE void keep(const Tokens& tokens, int token) const {
    if (!tokens.is_kept(token)) return;
    tokens.kept[tokens.record(token) + place_a] = a;
    tokens.kept[tokens.record(token) + place_b] = b;
  }
};

// Divides a vector by its length, by one warp.
NINFER_DEVICE void make_unit(float* vector, float factor, int lane) {
  float4* place = (float4*)vector + lane;
  const float4 v = *place;
  const float squares = warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w);
  const float scale = factor * rsqrtf(squares + UNIT_EPS);
  *place = make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
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

// Gated norm of the result of a token, by one warp that has the gate of components 4 * lane and
// after.
NINFER_DEVICE void store_normalised(bf16* out, const float* result, const Pack<bf16, 4>& gate,
                                    const float* norm_weight, float eps, int lane) {
  const float4 v = *((const float4*)result + lane);
  const float y[4] = {v.x, v.y, v.z, v.w};
  const float squares = warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w);
  const float inverse = rsqrtf(squares / HEAD + eps);
  Pack<bf16, 4> pack;
#pragma unroll
  for (int i = 0; i < 4; i++)
    pack.set(i, y[i] * inverse * norm_weight[lane * 4 + i] * silu(gate[i]));
  store_pack<4>(out + lane * 4, pack);
}

}  // namespace ninfer
