// Tensor-core products of a warpgroup (four warps, sm_90a): D[64, N] = A[64, 16] * B[16, N] (+ D).
//
// Warp w of the group holds rows 16w..16w+15 of A and D in the register order of mma.m16n8k16; B lies
// in shared memory as N rows of 128 bytes (64 values of K), swizzled in 128 bytes.
#pragma once
#include "ninfer/prelude.cuh"

namespace ninfer {

#if NINFER_HAS_WGMMA

NINFER_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
NINFER_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Returns when at most PENDING of the committed groups still run.
template <int PENDING>
NINFER_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Registers of each thread of this warpgroup from here on; what one gives up another may take.
template <int REGISTERS>
NINFER_DEVICE void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
NINFER_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Keeps the compiler from moving uses of `d` to the other side of a wait.
template <int REGISTERS>
NINFER_DEVICE void wgmma_pin(float* d) {
#pragma unroll
  for (int i = 0; i < REGISTERS; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// The lower half of the descriptor of a tile of rows of 128 bytes at a multiple of 1024, which alone
// depends on its place; 32 bytes (16 values) are 2 units. The upper half: 1024 bytes from eight rows
// to the next eight, swizzled in 128 bytes.
NINFER_DEVICE u32 wgmma_descriptor(u32 address) { return (address & 0x3ffff) >> 4 | 1u << 16; }
constexpr u32 WGMMA_DESCRIPTOR_UPPER = 1024 >> 4 | 1u << 30;

#define NINFER_WGMMA(NAME, TYPE)                                                                  \
template <int N>                                                                                  \
NINFER_DEVICE void NAME(float* d, const u32* a, u32 b, int accumulate) {                          \
  if constexpr (N == 16)                                                                          \
    asm volatile(                                                                                 \
        "{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %13, 0;\nmov.b64 b, {%12, %14};\n"        \
        "wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPE "." TYPE " {"                          \
        "%0, %1, %2, %3, %4, %5, %6, %7 "                                                         \
        "}, {%8, %9, %10, %11}, b, p, 1, 1, 0;\n}"                                                \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]),                             \
          "+f"(d[5]), "+f"(d[6]), "+f"(d[7])                                                      \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(accumulate),                    \
          "r"(WGMMA_DESCRIPTOR_UPPER));                                                           \
  if constexpr (N == 32)                                                                          \
    asm volatile(                                                                                 \
        "{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %21, 0;\nmov.b64 b, {%20, %22};\n"        \
        "wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE "." TYPE " {"                          \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "                            \
        "%14, %15 "                                                                               \
        "}, {%16, %17, %18, %19}, b, p, 1, 1, 0;\n}"                                              \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]),                             \
          "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),                             \
          "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),                        \
          "+f"(d[15])                                                                             \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(accumulate),                    \
          "r"(WGMMA_DESCRIPTOR_UPPER));                                                           \
  if constexpr (N == 64)                                                                          \
    asm volatile(                                                                                 \
        "{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %37, 0;\nmov.b64 b, {%36, %38};\n"        \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {"                          \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "                            \
        "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, "                  \
        "%28, %29, %30, %31 "                                                                     \
        "}, {%32, %33, %34, %35}, b, p, 1, 1, 0;\n}"                                              \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]),                             \
          "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),                             \
          "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),                        \
          "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),                        \
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),                        \
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),                        \
          "+f"(d[30]), "+f"(d[31])                                                                \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(accumulate),                    \
          "r"(WGMMA_DESCRIPTOR_UPPER));                                                           \
}
NINFER_WGMMA(wgmma_f16, "f16")
NINFER_WGMMA(wgmma_bf16, "bf16")
#undef NINFER_WGMMA

#endif

}  // namespace ninfer
