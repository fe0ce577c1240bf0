// Types, half-precision arithmetic and shared-memory access. No CUDA or standard header is included
// anywhere in this project's device code, so that NVRTC alone compiles it.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define NINFER_DEVICE __device__ __forceinline__

// Bulk copies, memory barriers, clusters and programmatic dependent launch.
#define NINFER_HAS_BULK_COPY (__CUDA_ARCH__ >= 900)
// Conversion between e4m3 and f16 in hardware.
#define NINFER_HAS_E4M3_CONVERSION (__CUDA_ARCH__ >= 890)
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define NINFER_HAS_WGMMA 1
#else
#define NINFER_HAS_WGMMA 0
#endif

namespace ninfer {

// f16x2 values travel in u32: the low half is the element with the lower index.
NINFER_DEVICE u32 sub_f16x2(u32 a, u32 b) {
  u32 r;
  asm("sub.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

// The lower or the upper element twice; instructions take it from half a register.
NINFER_DEVICE u32 lower_twice(u32 pair) {
  u32 r;
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\nmov.b32 %0, {l, l};\n}" : "=r"(r) : "r"(pair));
  return r;
}
NINFER_DEVICE u32 upper_twice(u32 pair) {
  u32 r;
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\nmov.b32 %0, {h, h};\n}" : "=r"(r) : "r"(pair));
  return r;
}

NINFER_DEVICE u32 mul_f16x2(u32 a, u32 b) {
  u32 r;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

NINFER_DEVICE u32 fma_f16x2(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

NINFER_DEVICE float f16_to_float(u16 h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}

NINFER_DEVICE u16 float_to_f16(float f) {
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}

NINFER_DEVICE float bf16_to_float(u16 b) { return __uint_as_float((u32)b << 16); }

NINFER_DEVICE u16 float_to_bf16(float f) {
  u16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(f));
  return r;
}

// (a & mask) | c and (a & mask) ^ c: one instruction each.
NINFER_DEVICE u32 and_or(u32 a, u32 mask, u32 c) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(r) : "r"(a), "r"(mask), "r"(c));
  return r;
}

NINFER_DEVICE u32 and_xor(u32 a, u32 mask, u32 c) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(r) : "r"(a), "r"(mask), "r"(c));
  return r;
}

// Bits of `a` where `mask` has ones, of `b` where it has zeros.
NINFER_DEVICE u32 bits_of(u32 mask, u32 a, u32 b) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(r) : "r"(mask), "r"(a), "r"(b));
  return r;
}

NINFER_DEVICE u32 rotate_right(u32 a, u32 bits) { return __funnelshift_r(a, a, bits); }

NINFER_DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
NINFER_DEVICE const void* shared_pointer(u32 a) {
  return (const void*)__cvta_shared_to_generic(a);
}
NINFER_DEVICE u32 load_shared_4(u32 a) { return *(const u32*)shared_pointer(a); }
NINFER_DEVICE uint2 load_shared_8(u32 a) { return *(const uint2*)shared_pointer(a); }
NINFER_DEVICE void store_shared_8(u32 a, const uint2& v) { *(uint2*)shared_pointer(a) = v; }
NINFER_DEVICE uint4 load_shared_16(u32 a) { return *(const uint4*)shared_pointer(a); }

// Exchange of partial sums: volatile, so that they stay on their side of the barriers.
NINFER_DEVICE void store_shared_floats(u32 a, const float* v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(a), "f"(v[0]), "f"(v[1]), "f"(v[2]),
               "f"(v[3])
               : "memory");
}
NINFER_DEVICE void load_shared_floats(u32 a, float* v) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(a));
}
NINFER_DEVICE void store_shared_pair(u32 a, const float* v) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(a), "f"(v[0]), "f"(v[1]) : "memory");
}
NINFER_DEVICE void load_shared_pair(u32 a, float* v) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v[0]), "=f"(v[1]) : "r"(a));
}
NINFER_DEVICE void store_shared_float(u32 a, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(a), "f"(v) : "memory");
}
NINFER_DEVICE float load_shared_float(u32 a) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(a));
  return v;
}

// Data that an earlier kernel of the same stream wrote: never through the read-only path.
NINFER_DEVICE uint4 load_global_16(const void* p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// The shuffle tells the compiler that all lanes have the same: what follows from it stays in uniform
// registers, where bulk copies and descriptors need their addresses.
NINFER_DEVICE int warp_index() { return __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0); }

NINFER_DEVICE int min_int(int a, int b) { return a < b ? a : b; }

}  // namespace ninfer
