// Tensor-core products of one warp: D[16, 8] = A[16, 16] * B[16, 8] + C, accumulated in float.
#pragma once
#include "ninfer/prelude.cuh"

namespace ninfer {

// Lane 4g+q holds rows g, g+8 and columns 2q, 2q+1 of c; a and b hold pairs of f16 or bf16.
template <bool BF16>
NINFER_DEVICE void mma_16x8x16(float* c, const u32* a, u32 b0, u32 b1) {
  if constexpr (BF16)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// What a lane needs of b for 64 rows of K: the pairs b0, b1 of four products, from two 16-byte words.
NINFER_DEVICE void unpack_fragment(const uint4& u, const uint4& v, u32* b) {
  b[0] = u.x;
  b[1] = u.y;
  b[2] = u.z;
  b[3] = u.w;
  b[4] = v.x;
  b[5] = v.y;
  b[6] = v.z;
  b[7] = v.w;
}

}  // namespace ninfer
