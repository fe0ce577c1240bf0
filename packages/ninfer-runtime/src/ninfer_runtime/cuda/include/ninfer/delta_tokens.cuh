// The tokens of one sequence of Gated DeltaNet: recorded ones, then new ones.
#pragma once
#include "ninfer/elements.cuh"
#include "ninfer/prelude.cuh"

namespace ninfer {

constexpr int HEAD = 128;  // of keys and values
constexpr int TAPS = 4;    // of the convolution
constexpr float UNIT_EPS = 1e-6f;
constexpr float QUERY_SCALE = 0.08838834764831845f;  // 1 / sqrt(128)

// Inputs of one sequence. Token 0 is the first after the source state; `replayed` tokens come from
// the records, the others are new. Tokens before 0 are the history of the convolution.
struct Tokens {
  const u16* records;  // of the source
  u16* kept;           // of the destination
  u32 record_width;
  int ring, place, position, replayed, total;  // `place`: position % ring
  bool moves, keeps;

  NINFER_DEVICE u32 record(int token) const {
    int r = place + token;  // no token with a record is a whole ring away
    r += r < 0 ? ring : r >= ring ? -ring : 0;
    return r * record_width;
  }
  // Whether `token` is to be read from the records: of those before token 0 the last three are there.
  NINFER_DEVICE bool is_recorded(int token) const {
    return token > -TAPS && token < replayed && position + token >= 0;
  }
  // Four neighbouring channels of a recorded token, zeros for others. Past the first-level cache,
  // which may hold what was there before.
  NINFER_DEVICE uint2 recorded_quad(int token, u32 channel) const {
    if (!is_recorded(token)) return make_uint2(0, 0);
    const u32* quad = (const u32*)(records + record(token) + channel);
    return make_uint2(__ldcg(quad), __ldcg(quad + 1));
  }
  // Whether `token` has to be written to the records of the destination.
  NINFER_DEVICE bool is_kept(int token) const {
    return token >= replayed ? keeps && token < total : moves && position + token >= 0;
  }
};

NINFER_DEVICE float2 pair_of(u32 words) {
  return make_float2(__uint_as_float(words << 16), __uint_as_float(words & 0xffff0000u));
}

NINFER_DEVICE float softplus(float x) { return x > 20.f ? x : log1pf(__expf(x)); }

}  // namespace ninfer
