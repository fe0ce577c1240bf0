// Weight records to rows of bf16 [tiles * 16, records * 64]: for so many columns that decoding every
// weight once and multiplying with a library's kernel is faster than decoding as one multiplies.
#include "ninfer/launch_order.cuh"
#include "ninfer/prelude.cuh"
#include "ninfer/weight_record.cuh"

namespace ninfer {

// One warp decodes one record. It comes in and goes out through shared memory, where rows are 16 bytes
// longer so that no two lanes meet in a bank.
template <int F>
__global__ __launch_bounds__(256) void dequantize_kernel(const u8* __restrict__ weight,
                                                         const float* __restrict__ row_scale,
                                                         u16* out, int rows, int records,
                                                         u32 count) {
  constexpr int BYTES = RecordShape<F>::BYTES, ROW_BYTES = 128 + 16;
  constexpr int HELD_BYTES = BYTES > 16 * ROW_BYTES ? BYTES : 16 * ROW_BYTES;
  __shared__ __align__(16) u8 held[8][HELD_BYTES];
  wait_for_previous_kernels();  // products may still read what lies in `out`
  let_next_kernel_start();
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, g = lane >> 2, q = lane & 3;
  const u32 index = blockIdx.x * 8 + warp;
  if (index >= count) return;
  const u32 tile = index / records, record = index % records;
  for (int i = lane; i < BYTES / 16; i += 32)
    ((uint4*)held[warp])[i] = ((const uint4*)(weight + (u64)index * BYTES))[i];
  __syncwarp();
  const LaneRecord<F> r = load_record<F>(shared_address(held[warp]), lane);
  __syncwarp();

  float factor[2];  // of rows g and g + 8
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = tile * 16 + g + 8 * i;
    factor[i] = record_factor<F>() * (row_scale && row < rows ? row_scale[row] : 1.f);
  }
  constexpr int GROUPS = RecordShape<F>::GROUPS;
#pragma unroll
  for (int s = 0; s < 4; s++) {
    u32 a[4];
    decode_step<F>(r, s, a);
    if constexpr (F != BF16) {
      float scale[2] = {factor[0], factor[1]};
      if constexpr (GROUPS > 0) {
        const u32 pair = scale_pair<F>(r, s * GROUPS / 4);
        scale[0] *= f16_to_float((u16)pair);
        scale[1] *= f16_to_float((u16)(pair >> 16));
      }
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float low = f16_to_float((u16)a[j]) * scale[j & 1];
        const float high = f16_to_float((u16)(a[j] >> 16)) * scale[j & 1];
        a[j] = float_to_bf16(low) | (u32)float_to_bf16(high) << 16;
      }
    }
#pragma unroll
    for (int j = 0; j < 4; j++)  // register j: row g + 8 (j & 1), columns 2q and up, or 8 more
      *(u32*)(held[warp] + (g + 8 * (j & 1)) * ROW_BYTES + s * 32 + (j >> 1) * 16 + q * 4) = a[j];
  }
  __syncwarp();
  u16* target = out + ((u64)tile * 16 * records + record) * 64;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int row = i * 4 + lane / 8, chunk = lane % 8;
    *(uint4*)(target + (u64)row * records * 64 + chunk * 8) =
        *(const uint4*)(held[warp] + row * ROW_BYTES + chunk * 16);
  }
}

}  // namespace ninfer
