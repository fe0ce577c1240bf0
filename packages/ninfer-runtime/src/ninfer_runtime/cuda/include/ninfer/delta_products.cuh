// The products of a chunk of Gated DeltaNet with 16 value rows of each warp, in f16: by each warp
// for itself, or by the four warps of a group together (sm_90a).
#pragma once
#include "ninfer/delta_chunk.cuh"
#include "ninfer/matrices.cuh"
#include "ninfer/mma.cuh"
#include "ninfer/wgmma.cuh"

namespace ninfer {

// What was stored to shared memory before, a product of a group may read after the next barrier.
NINFER_DEVICE void fence_shared_for_products() {
#if NINFER_HAS_BULK_COPY
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

struct WarpProducts {
  static constexpr bool READS_UPPER = false;  // blocks above the diagonal of triangular matrices
  static constexpr int REGISTERS = 255;       // of a thread at the start

  static NINFER_DEVICE void give_up_registers() {}
  static NINFER_DEVICE void take_registers() {}

  static NINFER_DEVICE void begin() {}
  static NINFER_DEVICE void commit() {}
  template <int PENDING, class... Sums>
  static NINFER_DEVICE void wait(Sums&...) {}

  static NINFER_DEVICE void set_zero(float (&sums)[8][4]) {
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) sums[j][e] = 0.f;
  }

  // sums[16, 64 tokens] = a[16, 128] * vectors of the tokens.
  static NINFER_DEVICE void multiply_tokens(float (&sums)[8][4], const u32 (&a)[8][4], u32 vectors,
                                            int lane) {
    const u32 base =
        vectors + (lane / 16 * 8 + lane % 8) * 128 + ((lane / 8 % 2) ^ (lane & 7)) * 16;
    set_zero(sums);
#pragma unroll
    for (int t = 0; t < 8; t++)
#pragma unroll
      for (int p = 0; p < 4; p++) {
        u32 b[4];
        load_matrices(b, (base ^ (t % 4 * 32)) + t / 4 * TILE_BYTES + p * 2048);
        mma_16x8x16<false>(sums[2 * p], a[t], b[0], b[1]);
        mma_16x8x16<false>(sums[2 * p + 1], a[t], b[2], b[3]);
      }
  }

  // sums[16, 64 tokens] = a[16, 64 tokens] * the transpose of a lower triangular matrix, or += it.
  template <bool ADDS>
  static NINFER_DEVICE void multiply_lower(float (&sums)[8][4], const u32 (&a)[4][4], u32 matrix,
                                           int lane) {
    if constexpr (!ADDS) set_zero(sums);
#pragma unroll
    for (int p = 0; p < 4; p++)
#pragma unroll
      for (int i = p; i < 4; i++) {
        u32 b[4];
        load_matrices(b, matrix + square_block(i, p) * BLOCK_BYTES + lane * 16);
        mma_16x8x16<false>(sums[2 * i], a[p], b[0], b[1]);
        mma_16x8x16<false>(sums[2 * i + 1], a[p], b[2], b[3]);
      }
  }

  // sums[16, 128] += a[16, 64 tokens] * keys of the tokens.
  static NINFER_DEVICE void add_updates(float (&sums)[16][4], const u32 (&a)[4][4], u32 keys,
                                        int lane) {
    const u32 base = keys + lane % 16 * 128 + ((lane / 16) ^ (lane & 7)) * 16;
#pragma unroll
    for (int p = 0; p < 4; p++)
#pragma unroll
      for (int c = 0; c < 8; c++) {
        u32 b[4];
        load_matrices_transposed(b, (base ^ (c % 4 * 32)) + c / 4 * TILE_BYTES + p * 2048);
        mma_16x8x16<false>(sums[2 * c], a[p], b[0], b[1]);
        mma_16x8x16<false>(sums[2 * c + 1], a[p], b[2], b[3]);
      }
  }
};

#if NINFER_HAS_WGMMA

// Where B lies: `leading` and `stride` bytes between its pieces, rows of 128 bytes swizzled or
// pieces of 8 rows of 16 bytes.
NINFER_DEVICE u64 matrix_descriptor(u32 address, u32 leading, u32 stride, u32 swizzle) {
  return (u64)((address & 0x3ffff) >> 4 | leading >> 4 << 16) | (u64)(stride >> 4 | swizzle << 30)
                                                                    << 32;
}

// D[64, 64] = A[64, 16] * B[16, 64] in f16, or += it; `TRANSPOSED`: B lies in rows of 64 columns.
template <bool ADDS, int TRANSPOSED>
NINFER_DEVICE void wgmma_multiply(float* d, const u32* a, u64 b) {
  if constexpr (!ADDS)
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, 0, 1, 1, %37;"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]),
          "=f"(d[7]), "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]),
          "=f"(d[14]), "=f"(d[15]), "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]),
          "=f"(d[21]), "=f"(d[22]), "=f"(d[23]), "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]),
          "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TRANSPOSED));
  if constexpr (ADDS)
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TRANSPOSED));
}

// The same asynchronously: sums are there after `wait`, until then neither they nor A may be
// touched. A product of fewer columns cannot add to some of the sums of another one before that is
// over, so that blocks above the diagonal must be zeros.
struct GroupProducts {
  static constexpr bool READS_UPPER = true;
  static constexpr int REGISTERS =
      176;  // so that a block of another kernel has room beside this one

  static NINFER_DEVICE void give_up_registers() { ninfer::give_up_registers<112>(); }
  static NINFER_DEVICE void take_registers() { ninfer::take_registers<240>(); }
  static constexpr u32 ROWS_OF_128 = 1, PIECES = 0;  // how B is swizzled

  static NINFER_DEVICE void begin() { wgmma_fence(); }
  static NINFER_DEVICE void commit() { wgmma_commit(); }
  template <int PENDING, class... Sums>
  static NINFER_DEVICE void wait(Sums&... sums) {
    wgmma_wait<PENDING>();
    (wgmma_pin<sizeof(Sums) / 4>(&sums[0][0]), ...);
  }

  static NINFER_DEVICE void multiply_tokens(float (&sums)[8][4], const u32 (&a)[8][4], u32 vectors,
                                            int) {
    const u64 b = matrix_descriptor(vectors, 16, 1024, ROWS_OF_128);
    wgmma_multiply<false, 0>(sums[0], a[0], b);
#pragma unroll
    for (int t = 1; t < 8; t++)
      wgmma_multiply<true, 0>(sums[0], a[t], b + (t / 4 * TILE_BYTES + t % 4 * 32) / 16);
  }

  template <bool ADDS>
  static NINFER_DEVICE void multiply_lower(float (&sums)[8][4], const u32 (&a)[4][4], u32 matrix,
                                           int) {
    const u64 b = matrix_descriptor(matrix, 128, 256, PIECES);
    wgmma_multiply<ADDS, 0>(sums[0], a[0], b);
#pragma unroll
    for (int p = 1; p < 4; p++)
      wgmma_multiply<true, 0>(sums[0], a[p], b + square_block(0, p) * BLOCK_BYTES / 16);
  }

  static NINFER_DEVICE void add_updates(float (&sums)[16][4], const u32 (&a)[4][4], u32 keys, int) {
    const u64 b = matrix_descriptor(keys, TILE_BYTES, 1024, ROWS_OF_128);
#pragma unroll
    for (int p = 0; p < 4; p++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        wgmma_multiply<true, 1>(sums[8 * half], a[p], b + (half * TILE_BYTES + p * 2048) / 16);
  }
};

#endif

}  // namespace ninfer
