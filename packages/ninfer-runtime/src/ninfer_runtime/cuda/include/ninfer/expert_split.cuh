// Gate and up matrix of the expert that all tokens share, while the others are being chosen: several
// blocks split K of a row tile, the first of them adds up what they send.
#pragma once
#include "ninfer/expert_products.cuh"
#include "ninfer/expert_ring.cuh"
#include "ninfer/expert_shape.cuh"
#include "ninfer/reduce.cuh"

namespace ninfer {

// The first half of the warps multiplies the gate's row tile, the second half that of the up matrix. Sums
// lie as [warp][column][16].
template <class M, class B>
struct SharedGate {
  static constexpr int BYTES = RecordShape<M::FS>::BYTES, HALF = B::W / 2;
  static constexpr int STAGE = MixtureMemory<M, B>::GATE_STAGE, CHUNK = STAGE / BYTES;
  static constexpr int PARTS = M::SPLIT * HALF, PITCH = B::T * 16;
  using Ring = BarrierRing<B::ST, STAGE>;
  const u8* data;
  const float* row_scale;
  int warp, loaded = 0;

  NINFER_DEVICE static bool exists() { return blockIdx.x < M::SHARED_PAIRS * M::SPLIT; }
  NINFER_DEVICE static int pair() { return blockIdx.x / M::SPLIT; }
  NINFER_DEVICE static bool finishes() { return exists() && blockIdx.x % M::SPLIT == 0; }
  NINFER_DEVICE int part() const { return blockIdx.x % M::SPLIT * HALF + warp % HALF; }
  NINFER_DEVICE int first() const { return part() * M::SHARED_RECORDS / PARTS; }
  NINFER_DEVICE int count() const {
    return exists() ? (part() + 1) * M::SHARED_RECORDS / PARTS - first() : 0;
  }

  NINFER_DEVICE void fill(const Ring& ring, int stage) {
    const int records = min_int(CHUNK, count() - loaded);
    if (records <= 0) return;
    const int tile = pair() + (warp < HALF ? 0 : M::SHARED_PAIRS);
    ring.fill(stage, data + (tile * M::SHARED_RECORDS + first() + loaded) * BYTES,
              records * BYTES);
    loaded += records;
  }
  NINFER_DEVICE void start(const Ring& ring) {
    if (ring.fills()) {
#pragma unroll
      for (int i = 0; i < B::ST; i++) fill(ring, i);
    }
    __syncwarp();
  }

  // load(i, b): this lane's values of record i of x.
  template <class Load>
  NINFER_DEVICE void multiply(Ring& ring, Load load, float* sums, int lane) {
    const int column = 2 * (lane & 3);
    float acc[4] = {0.f, 0.f, 0.f, 0.f};
    for (int c = 0; c < count(); c += CHUNK) {
      const u32 stage = ring.wait();
#pragma unroll 1
      for (int i = 0; i < CHUNK && c + i < count(); i++) {
        u32 b[8];
        load(first() + c + i, b);
        multiply_record<M::FS>(acc, load_record<M::FS>(stage + i * BYTES, lane), b);
      }
      const int free = ring.release();
      if (ring.fills()) fill(ring, free);
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (column + (e & 1) < B::T)
        sums[warp * PITCH + (column + (e & 1)) * 16 + (lane >> 2) + 8 * (e >> 1)] = acc[e];
  }

  // Sends the sums of the block for elements [column][16], in the order of its warps.
  NINFER_DEVICE void send(const float* sums, const TaggedWords& parts, int tokens,
                          int thread) const {
#pragma unroll 1
    for (int i = thread; i < 2 * PITCH; i += B::THREADS) {
      const int matrix = i / PITCH, element = i % PITCH;
      if (element >= tokens * 16) continue;
      float v = 0.f;
#pragma unroll
      for (int w = 0; w < HALF; w++) v += sums[(matrix * HALF + w) * PITCH + element];
      parts.send(blockIdx.x * (2 * PITCH) + i, __float_as_uint(v));
    }
  }

  // Adds up element i of [column][16] of the row tile and sends the product, whose rows begin at word
  // `first_word`. Sixteen neighbouring lanes, which come together, hold the rows of a column.
  NINFER_DEVICE void finish(const TaggedWords& parts, const TaggedWords& words, int first_word,
                            const float* factors, int i) const {
    const int at = blockIdx.x * (2 * PITCH) + i, column = i / 16, row = i % 16;
    u64 part[M::SPLIT * 2];
#pragma unroll
    for (int s = 0; s < M::SPLIT * 2; s++) part[s] = parts.load(at + s * PITCH);
    float sum[2] = {0.f, 0.f};
#pragma unroll
    for (int s = 0; s < M::SPLIT * 2; s++)
      sum[s % 2] += __uint_as_float((u32)parts.receive(at + s * PITCH, part[s]));
    const float factor = record_factor<M::FS>() * factors[column];
    sum[0] *= factor;
    sum[1] *= factor;
    if constexpr (M::FS == NVFP4 || M::FS == FP8) {
      const float* scale = row_scale + pair() * 16 + row;
      sum[0] *= scale[0];
      sum[1] *= scale[M::S];
    }
    const float h = silu(sum[0]) * sum[1];
    send_product<M::FDS == BF16>(words, first_word + column * (M::S / 2), pair() * 16 + row, h,
                                 largest_of_16(fabsf(h)));
  }
};

}  // namespace ninfer
