// Fragments of tensor-core products from 8x8 matrices of 16-bit values in shared memory.
#pragma once
#include "ninfer/prelude.cuh"

namespace ninfer {

// Lane 8m+r gives the address of row r of matrix m, 16 bytes; r[m] of lane 4g+q becomes columns 2q
// and 2q+1 of row g of it.
NINFER_DEVICE void load_matrices(u32* r, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// The same of the transposed matrices.
NINFER_DEVICE void load_matrices_transposed(u32* r, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Two of them, whose addresses lanes 0 to 15 give.
NINFER_DEVICE void load_two_matrices_transposed(u32* r, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

NINFER_DEVICE u32 f16_pair(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

NINFER_DEVICE u32 bf16_pair(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// Sums c[0], c[1] of columns 2q, 2q+1 and of 8 more as the A fragment of the next product.
NINFER_DEVICE void fragment_of_sums(u32* a, const float* low, const float* high) {
  a[0] = f16_pair(low[0], low[1]);
  a[1] = f16_pair(low[2], low[3]);
  a[2] = f16_pair(high[0], high[1]);
  a[3] = f16_pair(high[2], high[3]);
}

}  // namespace ninfer
