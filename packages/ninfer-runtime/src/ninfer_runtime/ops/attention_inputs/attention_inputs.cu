// One warp for each head of each new token: norm, rotation, codec. Lane l holds components 8l ..
// 8l+7.
#include "ninfer/elements.cuh"
#include "ninfer/hadamard.cuh"
#include "ninfer/kv_rows.cuh"
#include "ninfer/launch_order.cuh"
#include "ninfer/paged_spans.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

constexpr float E4M3_LARGEST = 448.f;

// To e4m3, to nearest even; larger values become the largest. Without the hardware's conversion, so
// that every device and the reference give the same bits.
NINFER_DEVICE u32 float_to_e4m3(float x) {
  const u32 sign = __float_as_uint(x) >> 24 & 0x80;
  const float magnitude = fminf(fabsf(x), E4M3_LARGEST);
  if (magnitude < 0.015625f) return sign | (u32)rintf(magnitude * 512.f);  // subnormal
  const u32 bits = __float_as_uint(magnitude);
  const u32 rounded = bits + 0x7ffff + (bits >> 20 & 1);
  return sign | ((rounded >> 20) - (120 << 3));
}

NINFER_DEVICE float e4m3_to_float(u32 code) {
  const u32 magnitude = code & 0x7f;
  if (magnitude < 8) return magnitude * (1.f / 512);
  return __uint_as_float((magnitude << 20) + (120u << 23));
}

// To e2m1, to nearest even; larger values become the largest.
NINFER_DEVICE u32 float_to_e2m1(float x) {
  const float m = fabsf(x);
  const u32 magnitude = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) +
                        (m >= 3.5f) + (m > 5.f);
  return (__float_as_uint(x) >> 28 & 8) | magnitude;
}

NINFER_DEVICE float largest_of(const float* x) {
  float largest = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(x[i]));
  return largest;
}

// Codes one row, spread over a warp, and writes it as row `row` of the planes.
template <int C>
NINFER_DEVICE void store_row(const float* x, u8* codes, u8* scales, i64 row, int lane) {
  using Shape = RowShape<C>;
  u8* code = codes + row * Shape::CODE_BYTES + lane * (Shape::CODE_BYTES / 32);
  u8* scale = scales + row * Shape::SCALE_BYTES;
  if constexpr (C <= ROWS_FP16) {
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      u32 half[2];
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const float v = x[2 * i + j];
        half[j] =
            C == ROWS_BF16 ? float_to_bf16(v) : float_to_f16(fminf(fmaxf(v, -65504.f), 65504.f));
      }
      words[i] = half[0] | half[1] << 16;
    }
    *(uint4*)code = make_uint4(words[0], words[1], words[2], words[3]);
  } else if constexpr (C == ROWS_NVFP4) {
    const float largest = warp_max<2>(largest_of(x));
    const u32 s = largest == 0.f ? 0 : float_to_e4m3(fmaxf(largest / 6.f, 0.001953125f));
    const float divisor = e4m3_to_float(s);
    u32 word = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
      word |= (largest == 0.f ? 0 : float_to_e2m1(x[i] / divisor)) << (4 * i);
    *(u32*)code = word;
    if (lane % 2 == 0) scale[lane / 2] = (u8)s;
  } else {
    constexpr int LANES = C == ROWS_INT8 ? 8 : 32;  // of a group
    const float largest = warp_max<LANES>(largest_of(x));
    float wanted = largest / 127.f;
    if constexpr (C == ROWS_FP8)
      wanted = largest == 0.f ? 0.f : fminf(fmaxf(largest / E4M3_LARGEST, 5.9604645e-8f), 65504.f);
    const u16 s = float_to_f16(wanted);
    const float wide = f16_to_float(s), inverse = wide == 0.f ? 0.f : 1.f / wide;
    u32 words[2] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      u32 byte;
      if constexpr (C == ROWS_INT8)
        byte = (u32)(int)fminf(fmaxf(rintf(x[i] * inverse), -127.f), 127.f) & 0xff;
      else
        byte = largest == 0.f ? 0 : float_to_e4m3(x[i] * inverse);
      words[i / 4] |= byte << (i % 4 * 8);
    }
    *(uint2*)code = make_uint2(words[0], words[1]);
    if (lane % LANES == 0) *(u16*)(scale + lane / LANES * 2) = s;
  }
}

template <class X>
NINFER_DEVICE void load_row(const X* source, int lane, float* x) {
  const Pack<X, 8> pack = load_pack<8>(source + lane * 8);
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] = pack[i];
}

// The norm over the row, whose weight is 1 + `scale`, then the rotation of its first 2 * `pairs`
// components (a multiple of 16).
NINFER_DEVICE void normalise_and_rotate(float* x, const float* scale, const float* cosines,
                                        const float* sines, int pairs, float eps, int lane) {
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) squares = fmaf(x[i], x[i], squares);
  const float inverse = rsqrtf(warp_sum(squares) / HEAD_DIM + eps);
  const int distance = pairs / 8;  // in lanes, between the two components of a pair
  const bool is_first = lane < distance, is_rotated = lane < 2 * distance;
  const int partner = is_first ? lane + distance : is_rotated ? lane - distance : lane;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    x[i] = x[i] * inverse * (scale[i] + 1.f);
    const float other = __shfl_sync(~0u, x[i], partner);
    if (is_rotated) {
      const int pair = (is_first ? lane : partner) * 8 + i;
      const float c = cosines[pair], s = sines[pair];
      x[i] = x[i] * c + (is_first ? -other : other) * s;
    }
  }
}

template <int C, bool TRANSFORMED>
NINFER_DEVICE void append_row(float* x, u8* codes, u8* scales, i64 row, int lane) {
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] = bf16_to_float(float_to_bf16(x[i]));
  if constexpr (TRANSFORMED) hadamard_256(x, lane);
  store_row<C>(x, codes, scales, row, lane);
}

// Warps: [lane][column][query heads, key heads, value heads]. Strides: of lanes, columns and heads.
template <int KC, int VC, class X, class W, class O>
__global__ __launch_bounds__(128, 4) void attention_inputs_kernel(
    const X* query, i64 query_lane, i64 query_column, i64 query_head, const X* key, i64 key_lane,
    i64 key_column, i64 key_head, const X* value, i64 value_lane, i64 value_column, i64 value_head,
    const W* query_weight, const W* key_weight, const float* cosines, const float* sines,
    const int* tables, const int* table_rows, const int* before, const int* new_columns, O* out,
    u8* key_codes, u8* key_scales, u8* value_codes, u8* value_scales, u32 lanes, u32 columns,
    u32 heads, u32 key_heads, u32 table_width, int pairs, float eps) {
  const int lane = threadIdx.x % 32;
  const u32 all_heads = heads + 2 * key_heads;
  const u32 index = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const u32 head = index % all_heads, token = index / all_heads;
  const u32 column = token % columns, sequence = min(token / columns, lanes - 1);
  // Weights are constant, and where the sequences stand was known before the kernel that computes
  // the heads: neither need wait for it.
  float scale[8] = {};
  if (head < heads + key_heads) load_row(head < heads ? query_weight : key_weight, lane, scale);
  const bool exists = (int)column < new_columns[sequence];
  const int position = before[sequence] + column;
  const u32 own = (head - heads) % key_heads;
  i64 row = 0;
  if (exists && head >= heads) {
    const int page = tables[(i64)table_rows[sequence] * table_width + position / PAGE];
    row = ((i64)page * key_heads + own) * PAGE + position % PAGE;
  }
  wait_for_previous_kernels();
  let_next_kernel_start();
  if (token >= lanes * columns) return;
  const float* cosine = cosines + (i64)token * pairs;
  const float* sine = sines + (i64)token * pairs;
  float x[8] = {};
  if (head < heads) {
    if (exists) {
      load_row(query + sequence * query_lane + column * query_column + head * query_head, lane, x);
      normalise_and_rotate(x, scale, cosine, sine, pairs, eps, lane);
    }
    Pack<O, 8> pack;
#pragma unroll
    for (int i = 0; i < 8; i++) pack.set(i, x[i]);
    store_pack<8>(out + ((i64)token * heads + head) * HEAD_DIM + lane * 8, pack);
    return;
  }
  if (!exists) return;
  if (head < heads + key_heads) {
    load_row(key + sequence * key_lane + column * key_column + own * key_head, lane, x);
    normalise_and_rotate(x, scale, cosine, sine, pairs, eps, lane);
    append_row<KC, KC != ROWS_BF16>(x, key_codes, key_scales, row, lane);
  } else {
    load_row(value + sequence * value_lane + column * value_column + own * value_head, lane, x);
    append_row<VC, VC == ROWS_NVFP4>(x, value_codes, value_scales, row, lane);
  }
}

}  // namespace ninfer
