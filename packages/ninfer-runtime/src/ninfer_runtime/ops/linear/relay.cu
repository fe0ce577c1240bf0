// Stored weights to records in MMA fragment order; one warp makes one record (weight_records.py says
// what is where). The bytes neither grow nor change their meaning.
#include "ninfer/prelude.cuh"
#include "ninfer/weight_record.cuh"

namespace ninfer {

// The code of row n and column k as it lies in the stored planes, 0 outside the matrix.
// `groups`: groups of 64 (q4, q5, q6) in a stored row; `pitch`: stored columns of a row.
template <int F>
NINFER_DEVICE u32 stored_code(const u8* codes, const u8* high, int n, int k, int rows, int pitch) {
  if (n >= rows || k >= pitch) return 0;
  if constexpr (F <= Q6 || F == NVFP4) {
    u32 code = codes[((u64)n * pitch + k) / 2] >> (k & 1) * 4 & 15;
    const int lane = k & 63;
    const u64 group = ((u64)n * pitch + k) / 64;
    if constexpr (F == Q5) code |= (high[group * 8 + lane / 8] >> lane % 8 & 1) << 4;
    if constexpr (F == Q6) code |= (high[group * 16 + lane / 4] >> lane % 4 * 2 & 3) << 4;
    return code;
  } else if constexpr (F == BF16) {
    return ((const u16*)codes)[(u64)n * pitch + k];
  } else {
    return codes[(u64)n * pitch + k];
  }
}

template <int F>
NINFER_DEVICE u32 stored_scale(const u8* scales, int n, int group, int rows, int pitch) {
  if (n >= rows) return 0;
  if constexpr (F == NVFP4) {
    const u64 block = (u64)(n / 128) * (pitch / 64) + group / 4;
    return scales[block * 512 + n % 32 * 16 + n % 128 / 32 * 4 + group % 4];
  } else {
    return ((const u16*)scales)[(u64)n * (pitch / (F == Q8 ? 32 : 64)) + group];
  }
}

// Where the upper two bits of element i of a step of q6 lie in its word of high bits.
NINFER_DEVICE int high_bit(int step, int i) {
  const int pair = 2 * step + (i >> 1 & 1), rotation = 2 * (pair + (pair & 2));
  return (4 + 4 * (i & 1) + 16 * (i >> 2) + rotation) & 31;
}

// Puts element i of a step of q5 into the five words of a lane.
NINFER_DEVICE void add_q5_code(u32* words, int step, int i, u32 code) {
  const int j = i & 3, half = 16 * (i >> 2);
  if (j < 3) {
    words[step] |= code << (half + 5 * j);
  } else if (step < 3) {
    words[4] |= code << (half + 5 * step);
  } else {
#pragma unroll
    for (int b = 0; b < 5; b++) words[b] |= (code >> b & 1) << (half + 15);
  }
}

// `tile_rows`: stored rows from what a tile begins with to what the next one does. `distance`: stored
// rows between what lies 8 rows apart in a tile.
template <int F>
__global__ __launch_bounds__(256) void relay_weight_kernel(const u8* __restrict__ codes,
                                                           const u8* __restrict__ high,
                                                           const u8* __restrict__ scales,
                                                           u8* out, int rows, int pitch,
                                                           int tiles, int records, int tile_rows,
                                                           int distance) {
  using Shape = RecordShape<F>;
  const u64 index = (u64)blockIdx.x * 8 + threadIdx.x / 32;
  if (index >= (u64)tiles * records) return;
  const int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
  const int first_row = (int)(index / records) * tile_rows, column = (int)(index % records) * 64;
  u32* record = (u32*)(out + index * Shape::BYTES);

  u32 high_words[2] = {0, 0}, q5_words[5] = {0, 0, 0, 0, 0};
#pragma unroll
  for (int s = 0; s < 4; s++) {
    u32 e[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int k = column + 16 * s + 2 * q + 8 * (i >> 1 & 1) + (i >> 2);
      e[i] = stored_code<F>(codes, high, first_row + g + distance * (i & 1), k, rows, pitch);
    }
    u32 word = 0;
    if constexpr (F == Q5) {
#pragma unroll
      for (int i = 0; i < 8; i++) add_q5_code(q5_words, s, i, e[i]);
    } else if constexpr (F <= Q6) {
#pragma unroll
      for (int i = 0; i < 8; i++) {
        word |= (e[i] & 15) << 4 * i;
        if constexpr (F == Q6) high_words[s >> 1] |= (e[i] >> 4) << high_bit(s & 1, i);
      }
      record[lane * 4 + s] = word;
    } else if constexpr (F == NVFP4) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const u32 *c = e + 4 * h, half = (c[0] & 8) << 12 | (c[0] & 7) << 9 | (c[1] & 8) << 3 |
                                         (c[1] & 7) | (c[2] & 8) << 5 | (c[2] & 7) << 3 |
                                         (c[3] & 8) << 4 | (c[3] & 7) << 12;
        word |= half << 16 * h;
      }
      record[lane * 4 + s] = word;
    } else if constexpr (F == BF16) {
#pragma unroll
      for (int j = 0; j < 4; j++) record[s * 128 + lane * 4 + j] = e[j] | e[j + 4] << 16;
    } else {
      const u32 flip = F == Q8 ? 0x80808080u : 0;
#pragma unroll
      for (int i = 0; i < 2; i++)
        record[(s >> 1) * 128 + lane * 4 + (s & 1) * 2 + i] =
            (e[2 * i] | e[2 * i + 4] << 8 | e[2 * i + 1] << 16 | e[2 * i + 5] << 24) ^ flip;
    }
  }
  if constexpr (F == Q5) {
#pragma unroll
    for (int s = 0; s < 4; s++) record[lane * 4 + s] = q5_words[s];
    record[128 + lane] = q5_words[4];
  }
  if constexpr (F == Q6) {
    record[128 + 2 * lane] = high_words[0];
    record[129 + 2 * lane] = high_words[1];
  }
  if constexpr (Shape::GROUPS > 0) {
    if (lane < 8) {  // lane g writes the scales of rows g and g + 8
      const int n = first_row + lane, other = n + distance, first = column / 64 * Shape::GROUPS;
      u32* target = record + Shape::SCALES / 4;
      if constexpr (F == NVFP4) {
#pragma unroll
        for (int i = 0; i < 2; i++)
          target[2 * lane + i] = stored_scale<F>(scales, n, first + 2 * i, rows, pitch) |
                                 stored_scale<F>(scales, other, first + 2 * i, rows, pitch) << 8 |
                                 stored_scale<F>(scales, n, first + 2 * i + 1, rows, pitch) << 16 |
                                 stored_scale<F>(scales, other, first + 2 * i + 1, rows, pitch)
                                     << 24;
      } else {
#pragma unroll
        for (int i = 0; i < Shape::GROUPS; i++)
          target[Shape::GROUPS * lane + i] =
              stored_scale<F>(scales, n, first + i, rows, pitch) |
              stored_scale<F>(scales, other, first + i, rows, pitch) << 16;
      }
    }
  }
}

}  // namespace ninfer
