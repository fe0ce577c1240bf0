// The convolution of Gated DeltaNet over a few tokens of a chunk, and what becomes of its result.
#pragma once
#include "ninfer/delta_chunk.cuh"
#include "ninfer/delta_tokens.cuh"
#include "ninfer/matrices.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

constexpr int SEGMENT = 8;  // tokens that a warp convolves at once
constexpr int SEGMENTS = CHUNK / SEGMENT;

// Four channels of one lane over a segment, after the tokens before it.
struct Segment {
  uint2 words[SEGMENT + TAPS - 1];

  // Tokens from `end` on are zeros.
  NINFER_DEVICE void load(const Tokens& tokens, const u16* live, i64 live_stride, u32 channel,
                          int begin, int end) {
    const int before = begin - (TAPS - 1);
    const u16* p = live + (before - tokens.replayed) * live_stride + channel;
    if (before >= tokens.replayed && begin + SEGMENT <= end) {
#pragma unroll
      for (int i = 0; i < SEGMENT + TAPS - 1; i++, p += live_stride) words[i] = *(const uint2*)p;
      return;
    }
    // Rare, so in turns through the last word, which is less code.
#pragma unroll 1
    for (int token = before; token < before + SEGMENT + TAPS - 1; token++, p += live_stride) {
#pragma unroll
      for (int i = 0; i < SEGMENT + TAPS - 2; i++) words[i] = words[i + 1];
      uint2& last = words[SEGMENT + TAPS - 2];
      last = make_uint2(0, 0);
      if (token >= end || tokens.position + token < 0) continue;
      if (token >= tokens.replayed) {
        last = *(const uint2*)p;
      } else {
        const u16* record = tokens.records + tokens.record(token) + channel;
        last = make_uint2(*(const u32*)record, *(const u32*)(record + 2));
      }
    }
  }

  // Convolution and SiLU, rounded to bf16: the first words become those of the segment.
  template <class W>
  NINFER_DEVICE void convolve(const W* convolution, u32 channels, u32 channel) {
    Pack<W, 4> weight[TAPS];
#pragma unroll
    for (int j = 0; j < TAPS; j++)
      weight[j] = load_pack<4>(convolution + (i64)j * channels + channel);
#pragma unroll
    for (int i = 0; i < SEGMENT; i++) {
      float y[4] = {};
#pragma unroll
      for (int j = 0; j < TAPS; j++) {
        const float2 low = pair_of(words[i + j].x), high = pair_of(words[i + j].y);
        const float x[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
        for (int c = 0; c < 4; c++) y[c] = fmaf(weight[j][c], x[c], y[c]);
      }
      words[i] = make_uint2(bf16_pair(silu_or_zero(y[0]), silu_or_zero(y[1])),
                            bf16_pair(silu_or_zero(y[2]), silu_or_zero(y[3])));
    }
  }

  // Of this lane's words of the first row, a multiple of 8, and of row i after it.
  static NINFER_DEVICE u32 first_offset(int row, int lane) {
    return lane / 16 * TILE_BYTES + row * 128 + lane % 16 * 8;
  }
  static NINFER_DEVICE u32 offset(u32 first, int i) { return (first ^ i * 16) + i * 128; }

  // Divides the rows by their lengths; as f16 into a tile and a record.
  NINFER_DEVICE void store_units(u8* tile, u8* record, int row, int lane) const {
    float squares[SEGMENT];
#pragma unroll
    for (int i = 0; i < SEGMENT; i++) {
      const float2 low = pair_of(words[i].x), high = pair_of(words[i].y);
      squares[i] = low.x * low.x + low.y * low.y + high.x * high.x + high.y * high.y;
    }
    const float scales = rsqrtf(sum_of_eighth<32>(squares, lane) + UNIT_EPS);
    const u32 first = first_offset(row, lane);
#pragma unroll
    for (int i = 0; i < SEGMENT; i++) {
      const float2 low = pair_of(words[i].x), high = pair_of(words[i].y);
      const float scale = __shfl_sync(~0u, scales, i * 4);
      const uint2 unit = make_uint2(f16_pair(low.x * scale, low.y * scale),
                                    f16_pair(high.x * scale, high.y * scale));
      *(uint2*)(tile + offset(first, i)) = unit;
      *(uint2*)(record + offset(first, i)) = unit;
    }
  }

  // Returns the largest magnitude.
  NINFER_DEVICE float store_values(u8* record, int row, int lane) const {
    float largest = 0.f;
    const u32 first = first_offset(row, lane);
#pragma unroll
    for (int i = 0; i < SEGMENT; i++) {
      const float2 low = pair_of(words[i].x), high = pair_of(words[i].y);
      largest = fmaxf(
          largest, fmaxf(fmaxf(fabsf(low.x), fabsf(low.y)), fmaxf(fabsf(high.x), fabsf(high.y))));
      *(uint2*)(record + offset(first, i)) = words[i];
    }
    return warp_max(largest);
  }
};

}  // namespace ninfer
