// Products of a warpgroup for attention (sm_90a), asynchronous: scores from queries and keys in
// shared memory, sums from weights in registers and values in shared memory, all as page_tile.cuh
// lays them.
#pragma once
#include "ninfer/page_tile.cuh"
#include "ninfer/wgmma.cuh"

namespace ninfer {

#if NINFER_HAS_WGMMA

// Four floats of eight columns of a product.
#define NINFER_EIGHT(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define NINFER_THIRTY_TWO(n) \
  NINFER_EIGHT(n), NINFER_EIGHT(n + 1), NINFER_EIGHT(n + 2), NINFER_EIGHT(n + 3)

#define NINFER_WGMMA_SCORES(NAME, TYPE)                                                   \
  NINFER_DEVICE void NAME(float (&d)[8][4], u32 a, u32 b, int accumulate) {               \
    asm volatile(                                                                         \
        "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %34, 0;\n"                     \
        "mov.b64 a, {%32, %35};\nmov.b64 b, {%33, %35};\n"                                \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE                       \
        " {"                                                                              \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31 " \
        "}, a, b, p, 1, 1, 0, 0;\n}"                                                      \
        : NINFER_THIRTY_TWO(0), NINFER_THIRTY_TWO(4)                                      \
        : "r"(a), "r"(b), "r"(accumulate), "r"(WGMMA_DESCRIPTOR_UPPER));                  \
  }
NINFER_WGMMA_SCORES(wgmma_scores_f16, "f16")
NINFER_WGMMA_SCORES(wgmma_scores_bf16, "bf16")
#undef NINFER_WGMMA_SCORES

// Half of the elements: d[64 rows, 128] += a[64 rows, 16 keys] * values at descriptor b, whose sums
// begin at eighth FIRST.
template <int FIRST>
NINFER_DEVICE void wgmma_values(float (&d)[32][4], const u32 (&a)[4], u32 b) {
  asm volatile(
      "{\n.reg .b64 b;\nmov.b64 b, {%68, %69};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63 "
      "}, {%64, %65, %66, %67}, b, 1, 1, 1, 1;\n}"
      : NINFER_THIRTY_TWO(FIRST), NINFER_THIRTY_TWO(FIRST + 4), NINFER_THIRTY_TWO(FIRST + 8),
        NINFER_THIRTY_TWO(FIRST + 12)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(WGMMA_DESCRIPTOR_UPPER));
}
#undef NINFER_THIRTY_TWO
#undef NINFER_EIGHT

constexpr int TILE_ROWS = 64, PANEL_BYTES = TILE_ROWS * 128;

// The lower half of the descriptor of values: as operands they are read across their rows, so that
// the next 64 elements lie a panel further on.
NINFER_DEVICE u32 values_descriptor(u32 address) {
  return (address & 0x3ffff) >> 4 | (u32)(PANEL_BYTES >> 4) << 16;
}

// Starts the scores of 64 keys for 64 rows.
template <bool BF16>
NINFER_DEVICE void start_scores(float (&score)[8][4], u32 queries, u32 keys) {
  const u32 a = wgmma_descriptor(queries), b = wgmma_descriptor(keys);
#pragma unroll
  for (int k = 0; k < HEAD_DIM / 16; k++) {
    const u32 step = k / 4 * (PANEL_BYTES >> 4) + k % 4 * 2;
    if constexpr (BF16)
      wgmma_scores_bf16(score, a + step, b + step, k > 0);
    else
      wgmma_scores_f16(score, a + step, b + step, k > 0);
  }
}

// Starts to add 64 keys' values, times their weights.
NINFER_DEVICE void start_values(float (&acc)[32][4], const u32 (&weights)[4][4], u32 values) {
  const u32 b = values_descriptor(values);
#pragma unroll
  for (int k = 0; k < TILE_ROWS / 16; k++) {
    const u32 step = b + k * (16 * 128 >> 4);
    wgmma_values<0>(acc, weights[k], step);
    wgmma_values<16>(acc, weights[k], step + 2 * (PANEL_BYTES >> 4));
  }
}

#endif

}  // namespace ninfer
