// Weight records of random words: every code of the format but those that are no number, and scales of
// about one size. A thread makes 16 bytes, which lie in one kind of data; `scale` is the size of the
// groups' scales, or of bf16 values.
#include "ninfer/prelude.cuh"
#include "ninfer/weight_record.cuh"

namespace ninfer {

// Random bits for every pair of seed and index (splitmix64).
NINFER_DEVICE u64 random_bits(u64 seed, u64 index) {
  u64 z = seed + (index + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

template <int F>
NINFER_DEVICE u32 random_codes(u32 bits, float scale) {
  if constexpr (F == BF16) {  // uniform, of standard deviation `scale`
    const float low = ((int)(bits & 0xffff) - 32768) * (1.7320508f / 32768.f);
    const float high = ((int)(bits >> 16) - 32768) * (1.7320508f / 32768.f);
    return float_to_bf16(low * scale) | (u32)float_to_bf16(high * scale) << 16;
  } else {
#pragma unroll
    for (int i = 0; i < 32; i += 8) {
      const u32 byte = bits >> i & 0xff;
      if (F == Q8 && byte == 0) bits |= 0x80u << i;               // -128 is no code
      if (F == FP8 && (byte & 0x7f) == 0x7f) bits ^= 0x40u << i;  // not a number
    }
    return bits;
  }
}

template <int F>
NINFER_DEVICE u32 random_scales(u32 bits, float scale) {
  if constexpr (F == NVFP4) {
    return (bits & 0x0f0f0f0fu) | 0x30303030u;  // 0.5 to 1.875
  } else {
    const float low = 0.75f + (bits & 0xffff) * (0.5f / 65536.f);
    const float high = 0.75f + (bits >> 16) * (0.5f / 65536.f);
    return float_to_f16(low * scale) | (u32)float_to_f16(high * scale) << 16;
  }
}

template <int F>
__global__ __launch_bounds__(256) void random_records_kernel(uint4* out, u64 count, u64 seed,
                                                             float scale) {
  using Shape = RecordShape<F>;
  const u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
  if (index >= count) return;
  const u64 a = random_bits(seed, 2 * index), b = random_bits(seed, 2 * index + 1);
  u32 words[4] = {(u32)a, (u32)(a >> 32), (u32)b, (u32)(b >> 32)};
  const bool scales = Shape::GROUPS > 0 && (int)(index % (Shape::BYTES / 16)) * 16 >= Shape::SCALES;
#pragma unroll
  for (int i = 0; i < 4; i++)
    words[i] = scales ? random_scales<F>(words[i], scale) : random_codes<F>(words[i], scale);
  out[index] = make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace ninfer
