// Norm and rotation of query and key heads. Lane l of a warp holds components 8l .. 8l+7 of a head.
#pragma once
#include "ninfer/elements.cuh"
#include "ninfer/kv_rows.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

template <class X>
NINFER_DEVICE void load_row(const X* source, int lane, float* x) {
  const Pack<X, 8> pack = load_pack<8>(source + lane * 8);
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] = pack[i];
}

// The angles of a token for its first 2 * `pairs` components (a multiple of 16); lanes of components
// that stay as they are have none.
struct Rotation {
  float cosine[8], sine[8];
  int distance;  // in lanes, between the two components of a pair

  NINFER_DEVICE Rotation(const float* cosines, const float* sines, int pairs, int lane)
      : distance(pairs / 8) {
    const int first = lane < distance ? lane : lane - distance;
    const bool is_rotated = lane < 2 * distance;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const float4 none = make_float4(0.f, 0.f, 0.f, 0.f);
      const float4 c = is_rotated ? *(const float4*)(cosines + first * 8 + i) : none;
      const float4 s = is_rotated ? *(const float4*)(sines + first * 8 + i) : none;
      cosine[i] = c.x, cosine[i + 1] = c.y, cosine[i + 2] = c.z, cosine[i + 3] = c.w;
      sine[i] = s.x, sine[i + 1] = s.y, sine[i + 2] = s.z, sine[i + 3] = s.w;
    }
  }
};

// The norm over a head, whose weight is 1 + `scale`, then the rotation. Every kernel that does it gets
// the same bits.
NINFER_DEVICE void normalise_and_rotate(float* x, const float* scale, const Rotation& rotation,
                                        float eps, int lane) {
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) squares = fmaf(x[i], x[i], squares);
  const float inverse = rsqrtf(fmaf(warp_sum(squares), 1.f / HEAD_DIM, eps));
  const int distance = rotation.distance;
  const bool is_first = lane < distance, is_rotated = lane < 2 * distance;
  const int partner = is_first ? lane + distance : is_rotated ? lane - distance : lane;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    x[i] = __fmul_rn(__fmul_rn(x[i], inverse), __fadd_rn(scale[i], 1.f));
    const float other = __shfl_sync(~0u, x[i], partner);
    if (is_rotated)
      x[i] = fmaf(is_first ? -other : other, rotation.sine[i],
                  __fmul_rn(x[i], rotation.cosine[i]));
  }
}

}  // namespace ninfer
