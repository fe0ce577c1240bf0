// Weights of attention: scores in powers of two, relative to the largest of their row.
#pragma once
#include "ninfer/matrices.cuh"
#include "ninfer/prelude.cuh"

namespace ninfer {

constexpr float NEVER = -1e30f;  // below every score: a row that has seen no key yet

NINFER_DEVICE float exp2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// How much smaller the f16 values of a query row are made, a power of two: 1 unless the largest of
// them leaves the range. Attention multiplies the scores of the row by the inverse.
struct RowShrink {
  float factor, inverse;

  static NINFER_DEVICE bool is_needed(float largest) { return largest > 32768.f; }
  NINFER_DEVICE RowShrink(float largest) : factor(1.f), inverse(1.f) {
    if (!is_needed(largest)) return;
    const u32 exponent = __float_as_uint(largest) >> 23;
    factor = __uint_as_float((2 * 127 + 14 - exponent) << 23);
    inverse = __uint_as_float((exponent - 14) << 23);
  }
};

}  // namespace ninfer
